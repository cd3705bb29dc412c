"""What is held of a call's values and output until somebody asks for its check.

The check compares weights times values with the output on a few rows. Held are these rows of the
output, and the values projected on a few fixed directions: weights times projected values are the
projected output. Two products that differ are the same in r directions drawn at random with a
probability of at most 2^-r (Freivalds, Probabilistic machines can use less running time, IFIP
Congress 1977). These were drawn once, for all calls alike: what is wrong with a record was not made
to fit them. So until it is checked a call holds r numbers for each key, where its values have d,
and a forward pass does not wait for the checks of what it records. Small values on a CPU are held
as they are: to copy them takes a quarter of the time.

B batch, H query heads, G key heads, N queries, M keys, r directions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.ops.causes import unrounded
from heedful.ops.evenly import evenly
from heedful.recording.rounding import tolerance_of
from heedful.recording.rounding_of_scores import deviation_of
from heedful.recording.row_sums import told
from heedful.recorder.observed import Finish, Observed, of_sequence
from heedful.recorder.owners.padding import Layout, distinct

SAMPLED = 8  # rows of each sequence on which a call is checked
DIRECTIONS = 8  # on which values are projected
SMALL = 1 << 20  # values on a CPU of at most so many bytes are copied, and projected later


@dataclass
class Evidence:
    """What a call is to be checked against.

    why: why nothing can be compared; then it has no tensors.
    kinds: the types of the query and the output, and that in which the call is kept; of attention
        by hand, those of scores and weights between them too.
    tolerance: what rounding explains, as torch was set when the call ran and values were projected.
    values: (B, G, M, r), projected, or (B, G, M, v) where `is_whole` or `is_to_be_projected`.
    is_whole: whether values are as they were, since a kernel did more after attention, or since
        some are no finite numbers, which would hide the others in every direction.
    is_to_be_projected: whether they are copies of small ones, which nobody has looked at yet.
    outputs: of each sequence the rows that are compared, (H, n, v).
    row_sums: of each sequence the log-sum-exps of these rows, (H, n), where a kernel gave them.
    sums: (B, H, N), all that the kernel gave, which the call keeps if these agree.
    finish: what a kernel did after attention to give the output.
    added: of each sequence what is in these rows beside weights times values, (H, n, v), and
        `times` by what these are multiplied there.
    deviation: the standard deviation of a score from 1 to 2 that the model's own rounding leaves.
    added_to_scores: of each sequence what stood beside scores at most, (H or 1, N or 1, 1).
    is_by_hand: whether a softmax by hand made the weights; then a row that sees nothing comes out
        as zeros or NaN, while kernels differ in what they give.
    """

    why: str
    kinds: frozenset[torch.dtype]
    tolerance: float
    values: Tensor | None = None
    is_whole: bool = False
    is_to_be_projected: bool = False
    outputs: Sequence[Tensor] = ()
    row_sums: Sequence[Tensor] = ()
    sums: Tensor | None = None
    finish: Finish | None = None
    added: Sequence[Tensor] = ()
    times: float = 1.0
    deviation: float = 0.0
    added_to_scores: Sequence[Tensor] = ()
    is_by_hand: bool = False

    def settled(self) -> Evidence:
        """The same with values projected that were only copied; whole if some are no numbers."""
        if self.values is None or not self.is_to_be_projected:
            return self
        values = projected(self.values)
        is_whole = not are_numbers(values)
        return replace(
            self,
            values=self.values if is_whole else values,
            is_whole=is_whole,
            is_to_be_projected=False,
            tolerance=max(self.tolerance, worst_tolerance(self.kinds, values.device)),
        )


def evidence_of(seen: Observed, layouts: Sequence[Layout], kept: torch.dtype) -> Evidence:
    """What is held of a call until it is checked; to be called where no gradients are followed.

    Args:
        seen: the call as it happened, of the heads that are kept.
        layouts: the layout of each sequence.
        kept: the type in which queries and keys are kept.

    Raises:
        TypeError: an output that cannot be weights times these values.
    """
    value, output = seen.value, seen.output
    used = (seen.query,) if output is None else (seen.query, output)
    kinds = seen.kinds.union((kept, *(one.dtype for one in used)))
    evidence = Evidence(seen.why, kinds, worst_tolerance(kinds, seen.query.device))
    if seen.dropout:
        evidence.why = "weights were dropped at random"
        return evidence
    if value is None or output is None:
        return evidence
    evidence.outputs, evidence.finish = _rows(output, layouts), seen.finish
    evidence.is_by_hand, evidence.deviation = seen.is_by_hand, deviation_of(seen.rounded_to)
    if seen.added_to_scores is not None:
        evidence.added_to_scores = [
            _of_queries(of_sequence(seen.added_to_scores, sequence), layout)
            for sequence, layout in enumerate(layouts)
        ]
    if seen.finish is not None:
        evidence.values, evidence.is_whole = value, True
        return evidence
    if output.shape != (*seen.query.shape[:3], value.shape[-1]) or not value.shape[-1]:
        raise TypeError(f"an output {tuple(output.shape)} of values {tuple(value.shape)}")
    if seen.added is not None:
        if not seen.added.times:
            evidence.why = "the output has none of weights times values: they are multiplied by 0"
            return evidence
        evidence.times = seen.added.times
        evidence.added = [
            one.to(torch.promote_types(one.dtype, torch.float32)) * seen.added.share
            for one in _rows(seen.added.table, layouts)
        ]
    is_looked_at = _is_looked_at(value)
    if is_looked_at and value.nbytes <= SMALL:
        evidence.values, evidence.is_to_be_projected = value.clone(), True
    else:
        evidence.values = projected(value)
        if is_looked_at and not are_numbers(evidence.values):
            evidence.values, evidence.is_whole = value.clone(), True
    if seen.sums is not None and kept == seen.query.dtype:
        evidence.row_sums = [one[..., 0] for one in _rows(seen.sums[..., None], layouts)]
        evidence.sums = told(seen.sums, seen.query, output)
    return evidence


def _is_looked_at(value: Tensor) -> bool:
    """Whether to look at values keeps nobody waiting, as it does not on a CPU.

    A pass would have to wait for a GPU in each call, which takes longer than all else; there the
    check looks, later.
    """
    return value.is_cpu


def are_numbers(values: Tensor) -> bool:
    """Whether values are finite, and can be added up."""
    return math.isfinite(float(values.sum()))


def worst_tolerance(kinds: frozenset[torch.dtype], device: torch.device) -> float:
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
    """Fixed directions of +1 and −1, (r, width); each of few features is one of its own."""
    if width <= DIRECTIONS:
        return torch.eye(width, dtype=kind, device=device)
    chance = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(2, (DIRECTIONS, width), generator=chance, device="cpu")
    return (2 * signs - 1).to(device, kind)


def _rows(table: Tensor, layouts: Sequence[Layout]) -> Sequence[Tensor]:
    """The rows of each sequence that are compared, (H, n, v), of a table (B, H, N, v)."""
    N = table.shape[2]
    if all(one.queries.numel() == N for one in distinct(layouts)):
        return table[:, :, _sampled_on(table.device, N)].unbind()
    # so a GPU is not waited for: the driver has taken the few indices once this returns
    rows = [rows_sampled(layout).to(table.device, non_blocking=True) for layout in layouts]
    return [one[:, own] for one, own in zip(table, rows, strict=True)]


def _of_queries(table: Tensor, layout: Layout) -> Tensor:
    """The rows of a sequence's own queries, of a table (H or 1, N or 1, 1)."""
    return table[:, layout.queries] if table.shape[1] > 1 else table


def rows_sampled(layout: Layout) -> Tensor:
    """Where the rows that are compared of one sequence stand in its call."""
    return layout.queries[sampled(len(layout.queries))]


@functools.lru_cache(maxsize=64)
def _sampled_on(device: torch.device, rows: int) -> Tensor:
    """`sampled` on a device, so that a GPU is not waited for in each call."""
    return sampled(rows).to(device)


@functools.lru_cache(maxsize=64)
def sampled(rows: int) -> Tensor:
    """The indices of the rows that are compared, spread evenly over so many; not to be changed."""
    with torch.inference_mode(False):  # it is made once, and may be asked for again outside
        return evenly(rows, SAMPLED)
