"""What is kept of a call's values and output until the call is checked.

The check compares weights times values with the output on a few rows, both projected on r fixed
directions, so that a call keeps r numbers for each key and a forward pass does not wait for checks.
Two products that differ are equal in r random directions with a probability of at most 2^-r
(Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977). Small values on a
CPU are copied as they are, which is faster.

Leading axes are those of the call: (B, H) of a call with four axes, (b,) of a product by hand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.ops.indexing import evenly
from heedful.ops.inputs import unrounded
from heedful.recording.row_sums import sums_of_kernel
from heedful.recording.tolerance import tolerance_of

SAMPLED = 8  # rows that are compared, the first and the last among them
DIRECTIONS = 8  # on which values are projected
SMALL = 1 << 20  # values on a CPU of at most so many bytes are copied, and projected later
# What a kernel does after attention: from joined heads (B, n, H · v) and the index of their rows
# in its input, (sequences (B, 1), rows (n,)), to the output (B, n, D)
Finish: TypeAlias = Callable[[Tensor, Any], Tensor]


@dataclass
class Evidence:
    """What a call is checked against.

    why: why nothing can be compared; then there are no tensors.
    kinds: the types of query and output, and the type in which the call is kept.
    tolerance: what rounding explains, as torch was set when the call ran.
    rows: (n,), the indices of the queries that are compared.
    values: (…, M, r), projected, or (…, M, v) where `is_whole` or `is_to_be_projected`.
    outputs: (…, n, v), the output in these rows.
    is_whole: whether values are unprojected, as a kernel did more after attention, or some are not
        finite. is_to_be_projected: whether they are copies of small ones, not looked at yet.
    sums: (B, H, N), the log-sum-exps that a kernel gave, which the call keeps if they agree.
    finish: what a kernel did after attention to give the output.
    """

    why: str
    kinds: frozenset[torch.dtype]
    tolerance: float
    rows: Tensor | None = None
    values: Tensor | None = None
    outputs: Tensor | None = None
    is_whole: bool = False
    is_to_be_projected: bool = False
    sums: Tensor | None = None
    finish: Finish | None = None

    def projected(self) -> Evidence:
        """The same with values projected that were only copied; whole if some are not finite."""
        if self.values is None or not self.is_to_be_projected:
            return self
        values = projected(self.values)
        is_whole = not are_finite(values)
        tolerance = max(self.tolerance, worst_tolerance(self.kinds, values.device))
        values = self.values if is_whole else values
        return replace(
            self, values=values, is_whole=is_whole, is_to_be_projected=False, tolerance=tolerance
        )

    def of_heads(self, heads: Sequence[int], count: int) -> Evidence:
        """The same for some of so many heads, each with values of its own."""
        if self.values is None or self.outputs is None:
            return self
        wanted = torch.tensor(heads, device="cpu")
        shared = wanted // (count // self.values.shape[1])
        sums = None if self.sums is None else self.sums[:, wanted]
        values, outputs = self.values[:, shared], self.outputs[:, wanted]
        return replace(self, values=values, outputs=outputs, sums=sums)


def evidence_of(
    value: Tensor | None, output: Tensor | None, kinds: Iterable[torch.dtype], *, why: str = "",
    finish: Finish | None = None,
) -> Evidence:  # fmt: skip
    """What is kept of values (…, M, v) and an output (…, N, v) until a call is checked.

    `kinds` are the types of query and keys, as they were and as they are kept; `why` says why
    nothing can be compared. With `finish`, what a kernel did next, the output is (B, 1, N, D).

    Raises:
        TypeError: an output that cannot be weights times these values.
    """
    if value is None or output is None or why:
        return Evidence(why, frozenset(kinds), 0.0)
    used = frozenset(kind for kind in (*kinds, output.dtype) if kind.is_floating_point)
    rows = sampled(output.shape[-2])
    keep = functools.partial(
        Evidence, "", used, worst_tolerance(used, output.device), rows,
        outputs=_rows_of(output, rows), finish=finish,
    )  # fmt: skip
    if finish is not None:
        return keep(values=value.clone(), is_whole=True)
    if output.shape[-1] != value.shape[-1] or not value.shape[-1]:
        raise TypeError(f"an output {tuple(output.shape)} of values {tuple(value.shape)}")
    # to look at values keeps nobody waiting on a CPU; on a GPU the check looks, later
    if value.is_cpu and value.nbytes <= SMALL:
        return keep(values=value.clone(), is_to_be_projected=True)
    values = projected(value)
    if value.is_cpu and not are_finite(values):
        return keep(values=value.clone(), is_whole=True)
    return keep(values=values)


def with_sums(evidence: Evidence, sums: Tensor, query: Tensor, output: Tensor) -> Evidence:
    """The evidence with the log-sum-exps (B, H, N) that a kernel gave."""
    return replace(evidence, sums=sums_of_kernel(sums, query, output))


def are_finite(values: Tensor) -> bool:
    """Whether values are finite, and can be added up."""
    return math.isfinite(float(values.sum()))


def worst_tolerance(kinds: Iterable[torch.dtype], device: torch.device) -> float:
    """What rounding explains of a call with tensors of these types, as torch is set now."""
    return max(tolerance_of(kind, device) for kind in kinds)  # autocast narrows inside


def projected(tensor: Tensor) -> Tensor:
    """Values or outputs (…, n, v) on fixed directions, (…, n, r), in float32 at the least."""
    kind = torch.promote_types(tensor.dtype, torch.float32)
    directions = _directions(tensor.shape[-1], kind, tensor.device)
    with unrounded(tensor):
        # wide products take a third of the time of high ones; one for each head, for of directions
        # alone torch makes a single matrix first
        wide = tensor if tensor.dtype == kind else tensor.to(kind)
        return (directions.expand(*tensor.shape[:-2], -1, -1) @ wide.mT).mT


@functools.lru_cache(maxsize=64)
def _directions(width: int, kind: torch.dtype, device: torch.device) -> Tensor:
    """Fixed directions of +1 and −1, (r, width); the unit vectors where there are few features."""
    if width <= DIRECTIONS:
        return torch.eye(width, dtype=kind, device=device)
    chance = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(2, (DIRECTIONS, width), generator=chance, device="cpu")
    return (2 * signs - 1).to(device, kind)


def _rows_of(output: Tensor, rows: Tensor) -> Tensor:
    """A copy of some rows of an output, in half the time where these are all."""
    if len(rows) == output.shape[-2]:
        return output.clone()
    return output[..., _sampled_on(output.device, output.shape[-2]), :]


@functools.lru_cache(maxsize=64)
def _sampled_on(device: torch.device, rows: int) -> Tensor:
    """`sampled` on a device, so that a GPU is not waited for in each call."""
    return sampled(rows).to(device)


@functools.lru_cache(maxsize=64)
def sampled(rows: int) -> Tensor:
    """The indices of the rows that are compared, spread evenly over so many; not to be changed."""
    with torch.inference_mode(False):  # it is made once, and may be asked for again outside
        return evenly(rows, SAMPLED)
