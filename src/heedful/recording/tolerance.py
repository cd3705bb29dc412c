"""What rounding explains: how far two programs that compute the same attention may be apart."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from heedful.ops.indexing import ALL
from heedful.ops.inputs import AttentionInputs

# The worst difference that rounding explains, in units of what a head's values let it differ by
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# What torch may be set to round products of float32 to; TF32 has as many bits as float16, and no
# CPU computes in it
NARROWED = {"cuda": {"tf32": torch.float16}, "cpu": {"bf16": torch.bfloat16}}

# What rounding may change of a mean of values, in units of its type's last bit: in the output's own
# type, and in the type in which kernels add it up
ROUNDED, ADDED_UP = 4, 16
# How far torch's kernel for CPUs is off in half precision, where it takes exponents nearly
NEARLY = 2e-4


@functools.cache
def lost(kind: torch.dtype) -> float:
    """What rounding may change of a mean of values of a type, as a share of it."""
    wide = torch.promote_types(kind, torch.float32)
    return max(ROUNDED * torch.finfo(kind).eps, ADDED_UP * torch.finfo(wide).eps)


@functools.cache
def least(kind: torch.dtype) -> float:
    """The least number above 0 of a type: smaller weights are 0 in it."""
    return torch.finfo(kind).smallest_normal * torch.finfo(kind).eps


def tolerance_of(kind: torch.dtype, device: torch.device) -> float:
    """The worst difference that rounding explains, as torch is set to round products now."""
    return TOLERANCE.get(_narrowed(kind, device), 1e-2)


def rounding_of_sums(
    of: AttentionInputs, sums: Tensor, rows: Tensor | slice = ALL, *, narrowed: bool = True
) -> Tensor:
    """How far rounding moves the log-sum-exp of each of some rows, (H, n).

    Scores are products of d numbers, which two programs add up in two orders: each is off by a few
    bits of |query| · |key|, however small the score itself is.

    `narrowed` says whether torch may round products now, as it is set to. NaN where the sum (H, n),
    the query or the scale is no number.
    """
    kind, precise = of.query.dtype, of.in_precision()
    exact = precise.query.dtype
    eps = torch.finfo(_narrowed(exact, of.query.device) if narrowed else exact).eps
    # a key that is no number, which a mask may hide, hides no other one
    of_keys = precise.key.norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0)
    longest = of_keys.amax(dim=-1, keepdim=True)
    if len(of.query) > len(of.key):
        longest = longest.repeat_interleave(len(of.query) // len(of.key), dim=0)
    size = precise.query[:, rows].norm(dim=-1) * longest * abs(of.scale) + sums.abs()
    nearly = NEARLY if torch.finfo(kind).bits < 32 else 8 * eps
    return 4 * eps * size + nearly


def _narrowed(kind: torch.dtype, device: torch.device) -> torch.dtype:
    """The type to which torch is set to round products of a type now."""
    if kind != torch.float32:
        return kind
    backend = {"cuda": torch.backends.cuda, "cpu": torch.backends.mkldnn}.get(device.type)
    products = getattr(backend, "matmul", None)  # of a CPU from torch 2.9 on
    precision = getattr(products, "fp32_precision", None)
    if precision is None and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        precision = "tf32"
    return NARROWED.get(device.type, {}).get(str(precision), kind)
