"""Checks a call: weights from what is kept, times values, against the model's own output."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN, Causes, unrounded
from heedful.ops.cells import add_up, are_blind, softmax_rows
from heedful.ops.masks import Causal, Combined, Mask, Window
from heedful.ops.score_tables import ALL
from heedful.recorder.observed import Observed
from heedful.recorder.sequences.without_padding import Layout, take

SAMPLED = 8  # rows of each sequence on which a call is checked

# The worst difference that rounding explains, in units of what a head's values let it differ by
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
# What torch may be set to round products of float32 to; TF32 has as many bits as float16, and no
# CPU computes in it
NARROWED = {
    "cuda": {"tf32": torch.float16},
    "cpu": {"bf16": torch.bfloat16},
}

# What rounding may change of a mean of values, in units of its type's last bit: in the output's own
# type, and in the type in which kernels add it up
ROUNDED, ADDED_UP = 4, 16
AT_ONCE = 1 << 18  # numbers, 1 MB
LEAST = 1e-30  # what a difference is divided by, also where all values are alike
# How far torch's kernel for CPUs is off in half precision, where it takes exponents nearly
NEARLY = 2e-4


@dataclass
class Check:
    """How far weights @ values was from the output that the model used, on sampled rows.

    `worst` is the difference in the worst head of any sequence, in units of how much the values of
    that head differ; NaN where it cannot be told, and `why` says why. `rows` is the number of rows
    that were compared in all sequences, and `where` says which head and sequence is worst.
    In `recording.certificate()`, `proof` is the word for the call, and `why` all that is missing.
    """

    worst: float
    tolerance: float
    rows: int
    why: str = ""
    where: str = ""
    proof: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.tolerance


@torch.no_grad()
def certify(
    causes: Iterable[Causes], layouts: Sequence[Layout], kept: torch.dtype, seen: Observed
) -> tuple[Check, bool]:
    """Compare rows recomputed from what is kept with the output that the model really used.

    Args:
        causes: what is kept of each sequence, so that padding left out, a mask taken for a
            structure and a narrower type are all part of what is proved.
        layouts: the layout of each sequence.
        kept: the type in which queries and keys are kept.
        seen: the same call as it happened, of the same heads.

    Returns:
        the check, and whether the log-sum-exp that a kernel gave is that of the rows.
    """
    value, output = seen.value, seen.output
    used = {kept, *(one.dtype for one in (seen.query, output) if one is not None)}
    device = seen.query.device
    tolerance = max(tolerance_of(kind, device) for kind in used)  # autocast narrows inside
    if seen.dropout:
        return Check(math.nan, tolerance, 0, "weights were dropped at random"), False
    if value is None or output is None:
        return Check(math.nan, tolerance, 0, seen.why), False
    worst, rows, where = 0.0, 0, ""
    agree = seen.sums is not None and kept == seen.query.dtype
    step = max(map(_lost, used)) / tolerance
    for sequence, (of, layout) in enumerate(zip(causes, layouts, strict=True)):
        with unrounded(seen.query):
            found = _compared(of, layout, seen, sequence, step)
        if found is None:
            continue
        off, count, are_sums = found
        rows, agree = rows + count, agree and are_sums
        most = max(off)
        if not most <= worst:
            worst, where = most, f"head {off.index(most)} of sequence {sequence}"
    if not rows:
        return Check(math.nan, tolerance, 0, "no query sees anything"), False
    return Check(worst, tolerance, rows, where=where), agree


@functools.cache
def _lost(kind: torch.dtype) -> float:
    """What rounding may change of a mean of values of a type, as a share of it."""
    wide = torch.promote_types(kind, torch.float32)
    return max(ROUNDED * torch.finfo(kind).eps, ADDED_UP * torch.finfo(wide).eps)


def tolerance_of(kind: torch.dtype, device: torch.device) -> float:
    """The worst difference that rounding explains, as torch is set to round products now."""
    return TOLERANCE.get(_narrowed(kind, device), 1e-2)


def rounding_of_sums(
    of: Causes, sums: Tensor, rows: Tensor | slice = ALL, *, narrowed: bool = True
) -> Tensor:
    """How far rounding moves the log-sum-exp of each of some rows, (H, n).

    Scores are products of d numbers, which two programs add up in two orders: each is off by a few
    bits of |query| · |key|, however small the score itself is.

    Args:
        of: what is kept.
        sums: (H, n), the log-sum-exps.
        rows: which they are.
        narrowed: whether torch may round products now, as it is set to.
    """
    kind, precise = of.query.dtype, of.in_precision()
    exact = precise.query.dtype
    eps = torch.finfo(_narrowed(exact, of.query.device) if narrowed else exact).eps
    longest = precise.key.norm(dim=-1).amax(dim=-1, keepdim=True)
    if len(of.query) > len(of.key):
        longest = longest.repeat_interleave(len(of.query) // len(of.key), dim=0)
    size = precise.query[:, rows].norm(dim=-1) * longest * abs(of.scale) + sums.abs()
    nearly = NEARLY if torch.finfo(kind).bits < 32 else 8 * eps
    return (4 * eps * size + nearly).nan_to_num(nan=math.inf)


def _narrowed(kind: torch.dtype, device: torch.device) -> torch.dtype:
    """The type to which torch is set to round products of a type now."""
    if kind != torch.float32 or device.type not in NARROWED:
        return kind
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    precision = getattr(backend.matmul, "fp32_precision", None)  # of torch 2.9 and newer
    if precision is None and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        precision = "tf32"
    return NARROWED[device.type].get(str(precision), kind)


def _compared(
    causes: Causes, layout: Layout, seen: Observed, sequence: int, step: float
) -> tuple[list[float], int, bool] | None:
    """How far off each head is on sampled rows that see something, and the number of these rows.

    The last is whether their log-sum-exps are those that a kernel gave. Where only the output of
    all heads together can be seen, there is one number for all of them.
    """
    queries, keys, _ = layout
    if not (len(queries) and len(keys)) or seen.value is None or seen.output is None:
        return None
    rows = sampled(len(queries))
    at = rows if len(queries) == seen.output.shape[2] else queries[rows]
    of = causes.of_heads(ALL)
    map_, highest = softmax_rows(of.in_precision(), rows, _table(of))
    agree = False
    if seen.sums is not None or of.sinks is not None:
        sums = add_up(of, rows, map_, highest)
        agree = seen.sums is not None and _agree(
            of, rows, sums, seen.sums[sequence][:, at].to(sums)
        )
    value = take(seen.value[sequence], keys).to(map_)
    used = seen.output[sequence][:, at].to(map_)
    made = _weighed(map_, value)
    if seen.finish is None:
        size = _spread(map_, value, step)
        every = _off_everywhere(made, used, size, highest)
        if every is not None:
            return every, len(rows), agree
    # the output of a row that sees nothing differs from kernel to kernel, and is no attention
    blind = are_blind(highest)
    if bool(blind.all()):
        return None
    if seen.finish is not None:
        joined = made.transpose(0, 1).flatten(1).to(seen.query.dtype)
        made = seen.finish(joined, (sequence, at))[None].to(map_)
        blind, size = blind.any(dim=0, keepdim=True), used.abs()
    off = _off_where_seen(made, used, size, blind[..., None])
    return off, int((~blind).any(dim=0).sum()), agree


def _off_everywhere(
    made: Tensor, used: Tensor, size: Tensor, highest: Tensor
) -> list[float] | None:
    """How far off each head is; None where some row sees nothing, or some number is none.

    That is known by one look at all of it, for which alone a device is waited for.
    """
    off = (made - used).abs_().amax(dim=(1, 2))
    found = torch.stack((highest.amin(dim=1), off, size.amax(dim=(1, 2))))
    lowest, most, largest = found.tolist()
    every = [one / max(other, LEAST) for one, other in zip(most, largest, strict=True)]
    return every if min(lowest) > HIDDEN / 2 and math.isfinite(sum(every)) else None


def _off_where_seen(made: Tensor, used: Tensor, size: Tensor, blind: Tensor) -> list[float]:
    """How far off each head is on rows that are not blind; infinitely where a number is none."""
    same = blind | (made.isnan() & used.isnan())
    off = (made - used).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    largest = size.nan_to_num().masked_fill(blind, 0.0).amax(dim=(1, 2)).clamp(min=LEAST)
    return (off.amax(dim=(1, 2)) / largest).tolist()


def _agree(of: Causes, rows: Tensor, sums: Tensor, given: Tensor) -> bool:
    """Whether log-sum-exps that a kernel gave are those of rows, where these see something.

    With no regard to how torch is set to round now: when rows are compared later, it may not be.
    """
    is_near = (sums - given).abs() <= rounding_of_sums(of, sums, rows, narrowed=False)
    return bool(torch.where(sums > -math.inf, is_near, True).all())


@functools.lru_cache(maxsize=64)
def sampled(rows: int) -> Tensor:
    """The indices of the rows that are compared, spread evenly over so many."""
    return torch.linspace(0, rows - 1, min(rows, SAMPLED), device="cpu").long().unique()


def _table(of: Causes) -> Tensor | None:
    """The mask of the rows that are compared; None where none was made that layers share."""
    parts = of.mask.parts if isinstance(of.mask, Combined) else (of.mask,)
    is_structure = all(isinstance(part, Causal | Window) for part in parts)  # without tensors
    return _made_once(parts, of.shape, of.query.device) if is_structure else None


@functools.lru_cache(maxsize=8)
def _made_once(
    parts: tuple[Mask, ...], shape: tuple[int, int, int], device: torch.device
) -> Tensor:
    return Combined(parts).between(shape, sampled(shape[1]), None, device)


def _weighed(map_: Tensor, value: Tensor) -> Tensor:
    """Weights times values; heads that share a value are one product, so that none is repeated."""
    made = map_.reshape(len(value), -1, map_.shape[-1]) @ value
    return made.reshape(len(map_), -1, value.shape[-1])


def _spread(map_: Tensor, value: Tensor, step: float) -> Tensor:
    """By how much the values that rows weigh differ, (H, n, v), and `step` of how large they are.

    A few heads at a time: where a table of all were new, the system would clear its memory first,
    which takes longer than to compute it.
    """
    group, few = len(map_) // len(value), max(1, AT_ONCE // max(1, value.shape[1:].numel()))
    if len(value) > few:
        parts = range(0, len(value), few)
        return torch.cat(
            [_spread(map_[at * group :][: few * group], value[at:][:few], step) for at in parts]
        )
    mean = value.mean(dim=1, keepdim=True)
    together, apart = map_.reshape(len(value), -1, map_.shape[-1]), (value - mean).abs_()
    made = torch.baddbmm(mean.abs_(), together, apart, beta=step, alpha=1 + step)
    return made.reshape(len(map_), -1, value.shape[-1])
