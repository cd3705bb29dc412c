"""Checks a call: weights from what is kept, times values, against the model's own output."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.ops.causes import Causes, unrounded, whole_rows
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


# Bits of a number, as a share of it: what is left of the mean of all values after rounding
STEPS = 4


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
) -> Check:
    """Compare rows recomputed from what is kept with the output that the model really used.

    Args:
        causes: what is kept of each sequence, so that padding left out, a mask taken for a
            structure and a narrower type are all part of what is proved.
        layouts: the layout of each sequence.
        kept: the type in which queries and keys are kept.
        seen: the same call as it happened, of the same heads.
    """
    value, output = seen.value, seen.output
    used = {kept, *(one.dtype for one in (seen.query, output) if one is not None)}
    device = seen.query.device
    tolerance = max(tolerance_of(kind, device) for kind in used)  # autocast narrows inside
    if seen.dropout:
        return Check(math.nan, tolerance, 0, "weights were dropped at random")
    if value is None or output is None:
        return Check(math.nan, tolerance, 0, seen.why)
    worst, rows, where = 0.0, 0, ""
    step = max(torch.finfo(kind).eps for kind in used) * STEPS / tolerance
    for sequence, (of, layout) in enumerate(zip(causes, layouts, strict=True)):
        with unrounded(seen.query):
            found = _compared(of, layout, seen, sequence, step)
        if found is None:
            continue
        off, count = found
        rows += count
        if not float(off.max()) <= worst:
            worst, where = float(off.max()), f"head {int(off.argmax())} of sequence {sequence}"
    if not rows:
        return Check(math.nan, tolerance, 0, "no query sees anything")
    return Check(worst, tolerance, rows, where=where)


def tolerance_of(kind: torch.dtype, device: torch.device) -> float:
    """The worst difference that rounding explains, as torch is set to round products now."""
    if kind == torch.float32 and device.type in NARROWED:
        backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
        precision = getattr(backend.matmul, "fp32_precision", None)  # of torch 2.9 and newer
        if precision is None and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            precision = "tf32"
        kind = NARROWED[device.type].get(str(precision), kind)
    return TOLERANCE.get(kind, 1e-2)


def _compared(
    causes: Causes, layout: Layout, seen: Observed, sequence: int, step: float
) -> tuple[Tensor, int] | None:
    """How far off each head is on sampled rows that see something, and the number of these rows.

    Where only the output of all heads together can be seen, there is one number for all of them.
    """
    queries, keys, _ = layout
    if not (len(queries) and len(keys)) or seen.value is None or seen.output is None:
        return None
    rows = sampled(len(queries))
    map_ = whole_rows(causes.of_heads(ALL).in_precision(), rows)
    value = take(seen.value[sequence], keys).to(map_)
    used = seen.output[sequence][:, queries[rows]].to(map_)
    # the output of a row that sees nothing differs from kernel to kernel, and is no attention
    blind = map_.amax(dim=-1, keepdim=True) == 0
    if bool(blind.all()):
        return None
    differing = (value - value.mean(dim=1, keepdim=True)).abs().add_(value.abs(), alpha=step)
    made, size = _weighed(map_, torch.cat([value, differing], -1)).chunk(2, dim=-1)
    if seen.finish is not None:
        joined = made.transpose(0, 1).flatten(1).to(seen.query.dtype)
        made = seen.finish(joined, (sequence, queries[rows]))[None].to(map_)
        blind = blind.any(dim=0, keepdim=True)
        size = used.abs()
    same = blind | (made.isnan() & used.isnan())
    off = (made - used).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    largest = size.nan_to_num().masked_fill(blind, 0.0).amax(dim=(1, 2)).clamp(min=1e-30)
    return off.amax(dim=(1, 2)) / largest, int((~blind[..., 0]).any(dim=0).sum())


@functools.lru_cache(maxsize=64)
def sampled(rows: int) -> Tensor:
    """The indices of the rows that are compared, spread evenly over so many."""
    return torch.linspace(0, rows - 1, min(rows, SAMPLED)).long().unique()


def _weighed(map_: Tensor, value: Tensor) -> Tensor:
    """Weights times values; heads that share a value are one product, so that none is repeated."""
    made = map_.reshape(len(value), -1, map_.shape[-1]) @ value
    return made.reshape(len(map_), -1, value.shape[-1])
