"""Expresses what was done to scores in the words of `Causes`: scale, softcap, mask and bias.

In come the changes of `Scores`, in their order; out comes a `ScoreCauses`, or None where some
change has no place in `Causes`. For `50 * tanh(q @ k.mT / 50) + bias` it has a scale of 1, a
softcap of 50 and the bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.doors.dead_rows import Step
from heedful.recorder.following.alignment import Order, aligned
from heedful.recorder.following.scores import FAINT, Change, Scores
from heedful.recorder.observed import Source
from heedful.recorder.sequences.axis_owners import Groups

FINITE = ("fill", "add", "keep")  # kinds of changes that may hide keys by a finite number
BLOCK = 1 << 20  # entries of a table that are looked at together
ROUNDS = ("scale", "divide", "softcap", "add", "cast")  # kinds that round what they change


@dataclass
class ScoreCauses:
    """What was done to scores, as `Causes` has it.

    factor: multiplies the queries, where each query or head has a scale of its own.
    source: what mask or bias were made of, where that is one tensor alone.
    steps: all that was done before the softmax, where some of it may have hidden keys by a finite
        number, as a fill or a bias can; else none.
    largest_added: the largest number that stood beside the scores of a row, (S, H, N, 1), and is
        gone.
    emptied: where weights were set to zero after the softmax: rows, or all that was hidden.
    """

    scale: float = 1.0
    factor: Tensor | None = None
    softcap: float | None = None
    mask: Any = None
    bias: Tensor | None = None
    source: Source | None = None
    steps: Sequence[Step] = ()
    emptied: Tensor | None = None
    largest_added: Tensor | None = None


def causes_of(scores: Scores, order: Order, groups: Groups) -> ScoreCauses | None:
    """What was done to scores; None where some of it has no place in `Causes`."""
    device = scores.product.left.device if scores.product else torch.device("cpu")
    found = _Found(ScoreCauses(), device)
    sink = scores.sink
    tables: list[tuple[Change, Any]] = []
    steps: list[Step] = []
    for number, change in enumerate(scores.changes):
        value = _value(change, change.value, order, groups)
        steps.append(
            Step(change.kind, value, change.dtype, _value(change, change.number, order, groups))
        )
        if change.kind == "cast":
            continue
        kind = change.kind
        if kind == "divide":
            kind, value = "scale", _inverse(wide(value, change.dtype))
        if kind not in ("scale", "softcap"):
            tables.append((change, value))
        is_after_sink = sink is not None and number >= sink.after
        is_of_rows = kind == "add" and _is_of_rows(value)
        if is_after_sink and not is_of_rows and kind != "empty":
            return None
        if is_of_rows and (is_after_sink or sink is None):
            if any(one.kind == "softcap" for one in scores.changes[number:]):
                return None
            continue  # the same for all keys, which a softmax does not see
        if not found.take(kind, value, change.dtype):
            return None
    if not found.finish():
        return None
    if len(tables) == 1 and not found.has_scaled_bias:
        found.causes.source = _source(*tables[0])
    if any(change.kind in FINITE for change, value in tables):
        # what comes after a sink moves it as it moves the scores
        found.causes.steps = steps if sink is None else steps[: sink.after]
    found.causes.largest_added = largest_added(steps, found.causes, device)
    return found.causes


def largest_added(steps: Sequence[Step], left: ScoreCauses, device: torch.device) -> Tensor | None:
    """The largest number that stood beside the scores of each row, (S, H, N, 1), and is gone.

    A score is rounded as coarsely as such a number is, also where it is taken off again or is the
    same for all keys.

    Args:
        steps: all that changed the scores.
        left: the mask and the bias that came of them. A hidden key has no weight; one whose bias
            is still at least half of the number tells of it by its bias, to a factor of two.
        device: of the scores.

    Returns:
        None where nothing was added, or one table alone.
    """
    added = [step.value for step in steps if step.kind == "add"]
    if not added or (len(added) == 1 and isinstance(added[0], Tensor) and added[0].shape[-1] > 1):
        return None
    values = [step.value for step in steps if step.kind in ("add", "scale", "divide")]
    tables = [one for one in (*values, left.mask, left.bias) if isinstance(one, Tensor)]
    shape = torch.broadcast_shapes((1, 1, 1, 1), *[one.shape for one in tables])
    parts = [_largest_of(rows, steps, left, device) for rows in blocks_of(shape)]
    return torch.cat(parts, dim=-2)


def _largest_of(
    rows: slice, steps: Sequence[Step], left: ScoreCauses, device: torch.device
) -> Tensor:
    """The same of some rows, (S, H, n, 1), all of whose numbers stand in memory at once."""
    sums = largest = torch.zeros((1, 1, 1, 1), dtype=torch.float32, device=device)
    for step in steps:
        value = at_rows(rows, step.value)
        if step.kind in ("scale", "divide"):
            factor = _inverse(wide(value, step.dtype)) if step.kind == "divide" else value
            sums, largest = sums * factor, largest * abs(factor)
        elif step.kind == "add":
            sums = sums + value  # in float32: half precision has no room for some sums
            largest = largest.maximum(sums.abs())
    for whole in (left.mask, left.bias):  # a bias may stand as the mask
        if isinstance(whole, Tensor):
            table = at_rows(rows, whole)
            is_gone = table if table.dtype == torch.bool else largest / 2 > table.abs()
            if table.dtype == torch.bool and largest.shape[-1] == 1:  # which needs no whole table
                is_gone = is_gone.any(dim=-1, keepdim=True)
            largest = torch.where(is_gone, largest, 0.0)
    # a row that is no number hides no other one
    return largest.amax(dim=-1, keepdim=True).nan_to_num(nan=0.0)


def blocks_of(shape: Sequence[int]) -> list[slice]:
    """The rows of a table (S, H, N, M), as many at a time as make `BLOCK` entries."""
    S, H, N, M = shape
    size = max(1, BLOCK // max(1, S * H * M))
    return [slice(first, first + size) for first in range(0, N, size)]


def at_rows(rows: slice, value: Any) -> Any:
    """Some rows of a value; all of it where it is the same for all rows."""
    return value[..., rows, :] if isinstance(value, Tensor) and value.shape[-2] > 1 else value


def wide(value: Any, dtype: torch.dtype) -> Any:
    """A table in a type at the least, and in float32, which has room; a number as it is."""
    if not isinstance(value, Tensor):
        return value
    kind = torch.promote_types(dtype, torch.float32)
    return value.to(torch.promote_types(value.dtype, kind))


def _inverse(value: Any) -> Any:
    """1 / value, of a number or of each one of a table."""
    if isinstance(value, Tensor):
        return value.reciprocal()
    return 1 / value if value else math.inf


def _is_of_rows(value: Any) -> bool:
    """Whether a value is the same for all keys of a row, and leaves their weights as they are."""
    if not isinstance(value, Tensor):
        return True
    return value.shape[-1] == 1 and bool(value.isfinite().all())


def _source(change: Change, value: Any) -> Source | None:
    """What the value of a change was made of; None where that is no tensor of the model's alone."""
    if change.source is None or change.held is None or not isinstance(value, Tensor):
        return None
    is_inverted = value.data_ptr() != change.source.data_ptr()  # as `where` has it
    return Source(change.source, (change.kind, is_inverted, value.stride()))


def _value(change: Change, value: Any, order: Order, groups: Groups) -> Any:
    """A value of a change: a number, or a table that broadcasts to (S, H, N, M)."""
    if not isinstance(value, Tensor):
        return value
    if not value.ndim:
        is_mask = value.dtype == torch.bool and change.kind in ("hide", "fill")
        return value.reshape(1, 1, 1, 1) if is_mask else float(value)
    table = aligned(value, change.axes, order, groups.all)[..., 0]
    if change.kind in ("scale", "divide", "add") and not table.is_floating_point():
        # torch makes whole numbers, true and false of the type of the scores first
        table = table.to(change.dtype)
        return table.to(torch.promote_types(change.dtype, torch.float32))
    return table


class _Found:
    """Takes one change of scores after the other."""

    def __init__(self, causes: ScoreCauses, device: torch.device) -> None:
        self.causes, self.device = causes, device
        self.has_scaled_bias = False  # then the bias is no table of the model's own any more
        self._zeroed: Tensor | None = None  # where a mask of 0 and 1 has multiplied by 0

    def take(self, kind: str, value: Any, dtype: torch.dtype) -> bool:
        """Take a change, after which scores are of a type; False if `Causes` has no place for it.

        Tables of the model's are put together in that type at the least, as it met the scores.
        """
        if kind == "scale":
            return self._scale(wide(value, dtype), dtype)
        if kind == "softcap":
            return self._cap()
        causes = self.causes
        if kind == "add":
            if not isinstance(value, Tensor):  # a number of the model's own, with all its digits
                value = torch.full(
                    (1, 1, 1, 1), value, dtype=_widest(self.device), device=self.device
                )
            before = causes.bias
            causes.bias = value if before is None else wide(before, dtype) + wide(value, dtype)
        elif kind in ("hide", "fill"):
            causes.mask = ~value if causes.mask is None else causes.mask & ~value
        elif kind == "empty":
            causes.emptied = value if causes.emptied is None else causes.emptied | value
        elif kind == "keep":
            self._zeroed = value == 0 if self._zeroed is None else self._zeroed | (value == 0)
        return True

    def _scale(self, value: Any, dtype: torch.dtype) -> bool:
        causes = self.causes
        if causes.bias is not None:
            causes.bias, self.has_scaled_bias = wide(causes.bias, dtype) * value, True
        if not isinstance(value, Tensor):
            if causes.softcap and value:  # a gate that is shut leaves 0 of any score
                causes.softcap *= value
            else:
                causes.scale *= value
        elif value.shape[-1] == 1 and causes.softcap is None:
            causes.factor = value if causes.factor is None else causes.factor * value
        else:
            return False
        return True

    def _cap(self) -> bool:
        causes = self.causes
        if causes.bias is not None or causes.mask is not None or causes.softcap is not None:
            return False
        causes.softcap = 1.0
        return True

    def finish(self) -> bool:
        """Complete the causes after the last change; False where `Causes` has no place for them."""
        causes, zeroed = self.causes, self._zeroed
        if zeroed is not None:
            if causes.bias is None:
                return False
            # a mask that multiplies hides only what a bias then takes away, far below the others
            bias, zeroed = torch.broadcast_tensors(causes.bias, zeroed)
            others = ~zeroed if causes.mask is None else causes.mask & ~zeroed
            most = bias.masked_fill(~others, -torch.inf).amax(-1, keepdim=True)
            is_seen = others.any(dim=-1, keepdim=True)  # else `dead_rows` knows what its keys get
            if not bool(((bias - most <= FAINT) | ~zeroed | ~is_seen).all()):
                return False
            causes.mask = ~zeroed if causes.mask is None else causes.mask & ~zeroed
            causes.bias = bias.masked_fill(zeroed, 0.0)
        if causes.mask is None:
            causes.mask, causes.bias = causes.bias, None
        causes.scale *= causes.softcap or 1.0
        return True


def rounding_types(changes: Sequence[Change], product: torch.dtype) -> tuple[torch.dtype, ...]:
    """The type to which each step has rounded scores, that of their product first."""
    found = [product]
    for one in changes:
        if one.kind in ROUNDS and not _is_exact(one):
            found.append(one.dtype)
    return tuple(found)


def _widest(device: torch.device) -> torch.dtype:
    """The widest type of numbers that a device has; that of Apple's has 32 bits."""
    return torch.float32 if device.type == "mps" else torch.float64


def _is_exact(change: Change) -> bool:
    """Whether a change multiplies or divides by a power of two, which moves no digit."""
    is_factor = change.kind in ("scale", "divide")
    is_number = is_factor and not isinstance(change.value, Tensor)
    return is_number and abs(math.frexp(change.value)[0]) == 0.5


def sinks_of(scores: Scores, order: Order, groups: Groups) -> Tensor | None:
    """The learned sinks of scores: (H,), or (S, H, N) where each query has its own."""
    if scores.sink is None:
        return None
    column = aligned(scores.sink.value, scores.sink.axes, order, groups.all)[..., 0, 0]
    S, H, N = (math.prod(atom.size for atom in group) for group in groups.all[:3])
    if column.shape[0] == 1 and column.shape[2] == 1:
        return column[0, :, 0].expand(H)
    return column.expand(S, H, N)
