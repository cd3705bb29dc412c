"""Tolerances: how much two computations of the same attention may differ by rounding."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from heedful.ops.indexing import ALL
from heedful.ops.inputs import AttentionInputs

# The largest difference that rounding explains, in units of the spread of a head's values
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# The dtypes to which torch's settings may round float32 products. TF32 has the precision of
# float16; CPUs do not support it
NARROWED = {"cuda": {"tf32": torch.float16}, "cpu": {"bf16": torch.bfloat16}}

# The rounding error of a mean of values, in units in the last place: of the output's dtype, and of
# the dtype in which kernels add
OUTPUT_ULPS, SUM_ULPS = 4, 16
# The error of torch's CPU kernel in half precision, which approximates exponentials
APPROXIMATE_EXP = 2e-4


@functools.cache
def relative_rounding(dtype: torch.dtype) -> float:
    """Return the relative rounding error of a mean of values of a dtype."""
    wide = torch.promote_types(dtype, torch.float32)
    return max(OUTPUT_ULPS * torch.finfo(dtype).eps, SUM_ULPS * torch.finfo(wide).eps)


@functools.cache
def smallest(dtype: torch.dtype) -> float:
    """Return the smallest positive number of a dtype; smaller weights are rounded to 0."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def tolerance_of(dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest difference that rounding explains, with torch's current settings."""
    return TOLERANCE.get(_product_dtype(dtype, device), 1e-2)


def rounding_of_sums(
    inputs: AttentionInputs, sums: Tensor, rows: Tensor | slice = ALL, *, narrowed: bool = True
) -> Tensor:
    """Return the rounding error of the log-sum-exps `sums` of some rows, (H, n).

    A score is a sum of d products, which kernels add in different orders. Its error is a few bits
    of |query| · |key|, even if the score is small.

    With `narrowed`, products are assumed to be rounded as torch's current float32 precision allows.
    The error is NaN if the sum, the query or the scale is NaN.
    """
    dtype, precise = inputs.query.dtype, inputs.upcast()
    exact = precise.query.dtype
    eps = torch.finfo(_product_dtype(exact, inputs.query.device) if narrowed else exact).eps
    # ignore keys that are not finite: they may be masked
    norms = precise.key.norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0)
    longest = norms.amax(dim=-1, keepdim=True)
    if len(inputs.query) > len(inputs.key):
        longest = longest.repeat_interleave(len(inputs.query) // len(inputs.key), dim=0)
    size = precise.query[:, rows].norm(dim=-1) * longest * abs(inputs.scale) + sums.abs()
    exp_error = APPROXIMATE_EXP if torch.finfo(dtype).bits < 32 else 8 * eps
    return 4 * eps * size + exp_error


def _product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype to which torch is currently set to round products of a dtype."""
    if dtype != torch.float32:
        return dtype
    backend = {"cuda": torch.backends.cuda, "cpu": torch.backends.mkldnn}.get(device.type)
    products = getattr(backend, "matmul", None)  # for CPUs since torch 2.9
    precision = getattr(products, "fp32_precision", None)
    if precision is None and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        precision = "tf32"
    return NARROWED.get(device.type, {}).get(str(precision), dtype)
