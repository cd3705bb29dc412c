"""The check of a call: recomputed weights times values are compared with the model's output.

`evidence` stores the tensors, this module computes the difference (`Check`), and `proof` names the
result. For attention by hand (written out as products and a softmax), replaying the operations
yields the weights. No check in this module shows which axes are texts, heads and queries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import ALL
from heedful.ops.inputs import AttentionInputs, no_autocast
from heedful.ops.map_region import fully_masked, row_log_sum_exp, softmax_rows
from heedful.ops.masks import Causal, Combined, Mask, Window
from heedful.recording.evidence import Evidence, are_finite, projected, worst_tolerance
from heedful.recording.mask_groups import Group, groups_of
from heedful.recording.tolerance import relative_rounding, rounding_of_sums, smallest
from heedful.recording.unpadded import RealTokens, take_rows

SMALLEST_UNIT = 1e-30  # smallest divisor, for heads whose values are all equal
NOT_FINITE = "some values are not finite, or too large to be added up"
NO_OUTPUT = "the output of some head has no finite number in the compared rows"
NO_ROWS = "all compared queries are fully masked"


@dataclass
class Check:
    """Difference between weights @ values and the output that the model used, on sampled rows.

    worst: the largest difference of any head, in units of the spread of that head's values; NaN if
        nothing was compared. tolerance: the largest difference that rounding explains.
    rows: the number of compared rows. where: the head of `worst`, and the sequence (text × part).
    why: why nothing was compared. `recording.certificate()` sets the call's proof, layout and why.
    """

    worst: float
    tolerance: float
    rows: int
    why: str = ""
    where: str = ""
    proof: str = ""
    layout: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.tolerance


class HeadErrors(NamedTuple):
    """The error of each head (infinite if a number is not finite), and the number of compared rows.

    lacks_output: whether some head has unmasked rows, but a finite output in none of these rows.
    """

    errors: list[float]
    rows: int
    lacks_output: bool = False


@torch.no_grad()
def certify(
    inputs: Iterable[AttentionInputs], tokens: Sequence[RealTokens], evidence: Evidence
) -> tuple[Check, bool]:
    """Check a call; also return whether the kernel's log-sum-exps agree with the recomputed rows.

    `inputs` are the stored attention inputs of each sequence. So the check covers what storing
    changes: padding is removed, `Causal` may replace a mask's table, the dtype may be narrower.
    """
    evidence = evidence.projected()
    values, outputs, sampled = evidence.values, evidence.outputs, evidence.rows
    if values is None or outputs is None or sampled is None:
        return Check(math.nan, evidence.tolerance, 0, evidence.why), False
    tolerance = max(evidence.tolerance, worst_tolerance(evidence.dtypes, values.device))
    worst, rows, where, lacks_output = 0.0, 0, "", False
    agree = evidence.sums is not None
    for group in groups_of(inputs, tokens):
        keys = group.tokens.keys
        value = take_rows(values[group.sequences], keys).flatten(0, 1)
        if not (evidence.is_unprojected or are_finite(value)):
            return Check(math.nan, tolerance, 0, NOT_FINITE), False
        with no_autocast(group.inputs.query):
            result, sums_agree = _compare_group(group, value, outputs, sampled, evidence, tolerance)
        if result is None:
            continue
        rows += result.rows * len(group.sequences)
        agree, lacks_output = agree and sums_agree, lacks_output or result.lacks_output
        largest = max(result.errors)
        if largest > worst:
            heads_per_sequence = len(result.errors) // len(group.sequences)
            sequence, head = divmod(result.errors.index(largest), heads_per_sequence)
            worst = largest
            where = f"head {head} of sequence {group.sequences[sequence]} (texts × parts)"
    return make_check(worst, tolerance, rows, where, lacks_output), agree


def make_check(worst: float, tolerance: float, rows: int, where: str, lacks_output: bool) -> Check:
    """Return a `Check`; its `worst` is NaN if `worst` is small, but some head was not compared."""
    if worst <= tolerance and (lacks_output or not rows):
        return Check(math.nan, tolerance, 0, NO_OUTPUT if lacks_output else NO_ROWS)
    return Check(worst, tolerance, rows, where=where)


def _compare_group(
    group: Group, value: Tensor, outputs: Tensor, rows: Tensor, evidence: Evidence, tolerance: float
) -> tuple[HeadErrors | None, bool]:
    """Compare the sampled rows of a group, if any; also return whether the log-sum-exps agree."""
    queries, keys, _ = group.tokens
    is_real = torch.isin(rows, queries)
    row_indices = torch.searchsorted(queries, rows[is_real])
    if not (len(row_indices) and len(keys)):
        return None, True
    inputs = group.inputs.of_heads(ALL)
    map_, highest = softmax_rows(inputs.upcast(), row_indices, _shared_mask(inputs, row_indices))
    agree = True
    if evidence.sums is not None or inputs.sinks is not None:
        sums = row_log_sum_exp(inputs, row_indices, map_, highest)
    if evidence.sums is not None:
        kernel_sums = evidence.sums[group.sequences][..., rows[is_real]].flatten(0, 1)
        agree = _sums_agree(inputs, row_indices, sums, kernel_sums)
    masked = fully_masked(highest)
    output = outputs[group.sequences][:, :, is_real].to(map_)
    if evidence.epilogue is not None:
        value, output = value.to(map_), output[:, 0]
        return _layer_errors(map_, value, output, masked, group, evidence, row_indices), agree
    output = output.flatten(0, 1)
    output = output if evidence.is_unprojected else projected(output)
    return compare(map_, value.to(map_), output, masked, evidence.dtypes, tolerance), agree


def compare(
    map_: Tensor, value: Tensor, output: Tensor, masked: Tensor, dtypes: frozenset[torch.dtype],
    tolerance: float,
) -> HeadErrors | None:  # fmt: skip
    """Compare weights (H, n, M) times values (G, M, r) with an output (H, n, r).

    `masked` (H, n) marks fully masked rows. They are skipped, since their output depends on the
    kernel. Returns None if all rows are masked.
    """
    if bool(masked.all()):
        return None
    expected = _context(map_, value)
    step = max(map(relative_rounding, dtypes)) / tolerance
    spread = (value - value.mean(dim=1, keepdim=True)).abs_().add_(step * value.abs())
    underflow = max(map(smallest, dtypes)) / tolerance * value.abs().sum(dim=1, keepdim=True)
    unit = _context(map_, spread) + underflow.repeat_interleave(len(map_) // len(value), dim=0)
    return _head_errors(expected, output, unit, masked, map_)


def _head_errors(
    expected: Tensor, output: Tensor, unit: Tensor, masked: Tensor, map_: Tensor
) -> HeadErrors:
    """Return the error of each head on the rows that are not fully masked, relative to `unit`."""
    if not bool(masked.any()):  # fast path: if the sum is finite, all numbers are finite
        largest = unit.amax(dim=(1, 2)).clamp(min=SMALLEST_UNIT)
        errors = (expected - output).abs_().amax(dim=(1, 2)) / largest
        if math.isfinite(float((errors + largest).sum())):
            return HeadErrors(errors.tolist(), expected.shape[1])
    is_equal = (expected == output) | (expected.isnan() & output.isnan())
    # Skip rows in which both outputs are equal and no number is finite, and rows of NaN weights and
    # output 0: for NaN weights and few keys, torch's CPU kernel returns zeros
    no_weights = map_.isnan().all(dim=-1) & (output == 0).all(dim=-1)
    no_output = (is_equal.all(dim=-1) & ~output.isfinite().any(dim=-1)) | no_weights
    no_output &= ~masked
    lacks_output = bool((no_output.any(dim=-1) & (no_output | masked).all(dim=-1)).any())
    skipped = masked | no_output
    errors = (expected - output).abs().masked_fill(is_equal | skipped[..., None], 0.0)
    unit = unit.nan_to_num(posinf=0.0).masked_fill(skipped[..., None], 0.0)
    errors = errors.nan_to_num(nan=math.inf).amax(dim=(1, 2))
    errors = errors / unit.amax(dim=(1, 2)).clamp(min=SMALLEST_UNIT)
    return HeadErrors(errors.tolist(), int((~skipped).any(dim=0).sum()), lacks_output)


def _layer_errors(
    map_: Tensor, value: Tensor, output: Tensor, masked: Tensor, group: Group, evidence: Evidence,
    rows: Tensor,
) -> HeadErrors | None:  # fmt: skip
    """Compare the output of a fused layer after `evidence.epilogue`; one error per sequence."""
    if evidence.epilogue is None or evidence.values is None or bool(masked.all()):
        return None
    by_sequence = len(group.sequences), -1
    context = _context(map_, value).masked_fill(masked[..., None], 0.0)
    joined = context.unflatten(0, by_sequence).transpose(1, 2).flatten(2)
    input_rows = torch.tensor(group.sequences, device="cpu")[:, None], group.tokens.queries[rows]
    expected = evidence.epilogue(joined.to(evidence.values.dtype), input_rows).to(context)
    masked, map_ = masked.unflatten(0, by_sequence).any(dim=1), map_.unflatten(0, by_sequence)[:, 0]
    return _head_errors(expected, output, output.abs(), masked, map_)


def _context(map_: Tensor, value: Tensor) -> Tensor:
    """Multiply weights (H, n, M) by values (G, M, r) of G groups of heads: (H, n, r)."""
    if len(map_) == len(value):
        return map_ @ value
    product = map_.unflatten(0, (len(value), -1)).flatten(1, 2) @ value
    return product.reshape(*map_.shape[:2], value.shape[-1])


def _sums_agree(inputs: AttentionInputs, rows: Tensor, sums: Tensor, kernel_sums: Tensor) -> bool:
    """Return whether the log-sum-exps agree with a kernel's, in rows where both are known.

    The tolerance is that of full float32: later comparisons may run with another torch setting.
    """
    kernel_sums = kernel_sums.to(sums)
    is_near = (sums - kernel_sums).abs() <= rounding_of_sums(inputs, sums, rows, narrowed=False)
    is_unknown = (sums == -math.inf) | kernel_sums.isnan()
    return bool((is_near | is_unknown).all())


def _shared_mask(inputs: AttentionInputs, rows: Tensor) -> Tensor | None:
    """Return rows of a mask that consists of `Causal` and `Window`, cached; None for others."""
    parts = inputs.mask.parts if isinstance(inputs.mask, Combined) else (inputs.mask,)
    if not all(isinstance(part, Causal | Window) for part in parts):
        return None
    return _cached_mask(parts, inputs.shape, tuple(rows.tolist()), inputs.query.device)


@functools.lru_cache(maxsize=8)
def _cached_mask(
    parts: tuple[Mask, ...], shape: tuple[int, ...], rows: tuple[int, ...], device: Any
) -> Tensor:
    return Combined(parts).between(shape, torch.tensor(rows, device="cpu"), None, device)


def check_replayed(evidence: Evidence, weights: Callable[[], Tensor]) -> Callable[[], Check]:
    """Return a function without arguments that checks a call of attention by hand.

    `weights` returns the weights (b, N, M) that multiplied the values (b, M, v) of the evidence.
    """
    return functools.partial(_check_replayed, evidence, weights)


@torch.no_grad()
def _check_replayed(evidence: Evidence, weights: Callable[[], Tensor]) -> Check:
    evidence = evidence.projected()
    values, outputs, rows = evidence.values, evidence.outputs, evidence.rows
    if values is None or outputs is None or rows is None:
        return Check(math.nan, evidence.tolerance, 0, evidence.why)
    tables = weights()[..., rows, :], values, outputs
    map_, values, outputs = (table.reshape(-1, *table.shape[-2:]) for table in tables)
    dtype = torch.promote_types(map_.dtype, torch.float32)
    if not (evidence.is_unprojected or are_finite(values)):
        return Check(math.nan, evidence.tolerance, 0, NOT_FINITE)
    with no_autocast(map_):
        output = outputs.to(dtype) if evidence.is_unprojected else projected(outputs).to(dtype)
        masked = (map_ == 0).all(dim=-1) if map_.shape[-1] else map_.new_ones(map_.shape[:2]).bool()
        result = compare(
            map_.to(dtype), values.to(dtype), output, masked, evidence.dtypes, evidence.tolerance
        )
    if result is None:
        return make_check(0.0, evidence.tolerance, 0, "", False)
    worst, rows_compared = max(result.errors), result.rows * len(map_)
    where = f"product {result.errors.index(worst)}"
    return make_check(worst, evidence.tolerance, rows_compared, where, result.lacks_output)
