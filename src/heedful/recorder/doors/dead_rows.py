"""Handles rows from which a model hides all keys by large numbers, and not by minus infinity.

With minus infinity such a row has no weights. With −1e9, say, it has: its softmax is one of the
numbers that stand where its scores stood. All keys get the same number most often, and then the
same weight; where a row is hidden twice, those that were hidden once share all of it. So the
numbers of these rows are worked out again as the model did, step by step and in its type. A row
then gets a query of zeros, and a mask and a bias that make the same weights of it. A sink far above
these numbers has all of the row; beside one that is not they count as high as they are.

A score of its own that a large number was added to is lost in the rounding, as 1.5 is in
1.5 − 1e9 in float32. So it is if the steps come to the same from the least score that the row may
have as from the largest, since each step keeps the order of what goes in. Where it is lost in part
only, the row cannot be shown so.

S sequences, H heads, N queries, M keys, r dead rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.following.scores import FAINT, lowest
from heedful.recorder.following.strides import unexpanded
from heedful.recorder.observed import Observed

ROUGH = 0.5  # what is rounded no coarser than this, and added again in its type, is the same again
ROUNDED_UP = 1.01  # by so much a product in half precision may be larger than its factors' lengths
FINE = 64  # scores up to this size are rounded as coarsely by their own product


class Step(NamedTuple):
    """One step that changed scores, as `Change` has it, with its axes in order.

    value: a number, or a table that broadcasts to (S, H, N, M).
    dtype: of the scores after it.
    number: what hidden scores were replaced by, a number or a table.
    """

    kind: str
    value: Any
    dtype: torch.dtype
    number: Any = -math.inf


def settle(seen: Observed, steps: Sequence[Step], product: Tensor) -> Tensor | None:
    """Give the dead rows of a call the query, mask and bias that make their weights.

    Args:
        seen: the call, whose mask is boolean, or is added to the scores where it has no bias.
        steps: all that changed the scores, in order.
        product: the queries (S, H, N, d) as they met the keys, before any step.

    Returns:
        which rows cannot be shown so, (S or 1, H or 1, N or 1): they stay as they are. None where
        all can.
    """
    dead = _dead(seen.mask, seen.bias, steps)
    if not bool(dead.any()):
        return None
    values = [one for step in steps for one in (step.value, step.number)]
    tables = [one.shape[:3] for one in values if isinstance(one, Tensor)]
    sinks = _sinks(seen)
    shape = torch.broadcast_shapes(dead.shape, sinks.shape, *tables)
    if not bool(product.isfinite().all() & seen.key.isfinite().all()):
        shape = product.shape[:3]  # one that is no number says nothing of other heads and texts
    at = dead.to(seen.query.device).expand(shape).nonzero().unbind(-1)
    found = _replays(seen.key, steps, product, at, (*shape, seen.shape[-1]))
    sink = sinks.expand(shape)[at][:, None].to(found.numbers)
    top = found.numbers.amax(dim=-1, keepdim=True)
    is_near = found.numbers - top.maximum(sink) > FAINT
    counts = is_near & found.is_own
    has_own, is_lost = counts.any(dim=-1), (found.are_same | ~counts).all(dim=-1)
    coarsest = found.coarse.masked_fill(~counts, 0.0).amax(dim=-1)
    # what is added beside a sink stands in one sum here, and is rounded once: not as the model did
    rough = ROUGH if seen.sinks is None else FINE * torch.finfo(seen.query.dtype).eps
    is_kept = has_own & ~is_lost & (coarsest <= rough) & (found.are_finite | ~counts).all(dim=-1)
    has_others = (is_near & ~found.is_own).any(dim=-1)
    cannot = (has_own & ~is_lost & ~is_kept) | (is_kept & has_others)
    cannot |= found.are_near_by_their_score(is_near, sink) | ~found.are_of_numbers
    # added again in the type in which the model did, they come out the same
    is_same = _at_least_float(found.numbers.dtype) == _at_least_float(seen.query.dtype)
    stays = is_kept & is_same & (top[:, 0] > _hiding(seen.mask))
    # by minus infinity, or a sink has all of it; what two numbers add up to may be the first
    is_hidden = ~is_near.any(dim=-1)
    sees = _seeing(seen.mask, seen.bias, -math.inf).to(at[0].device).expand(shape)[at]
    is_emptied = (top[:, 0] == -math.inf) & sees
    rows = ~cannot & ~stays & (~is_hidden | is_emptied)
    if bool(rows.any()):
        # beside a sink it counts where they are, and without one only how far they are apart
        below = torch.where(sink == -math.inf, found.numbers - top, found.numbers)
        anew = Anew(is_near[rows], below[rows], is_kept[rows], coarsest[rows])
        _put(seen, shape, tuple(one[rows] for one in at), anew)
    if not bool(cannot.any()):
        return None
    left = torch.zeros(shape, dtype=torch.bool, device=seen.query.device)
    left[at] = cannot
    return left


def _sinks(seen: Observed) -> Tensor:
    """The sink of each row, (S or 1, H or 1, N or 1): minus infinity without one."""
    if seen.sinks is None:
        return seen.query.new_full((1, 1, 1), -math.inf)
    sinks = seen.sinks if seen.sinks.ndim == 3 else seen.sinks[None, :, None]
    return unexpanded(sinks, range(3))


def _dead(mask: Any, bias: Tensor | None, steps: Sequence[Step]) -> Tensor:
    """Which rows have no key whose score is of an ordinary size, (S or 1, H or 1, N or 1)."""
    sees = _seeing(mask, bias, FAINT)
    for one in steps:  # added to all of a row, which a softmax does not see if it is small
        value = one.value
        if one.kind != "add" or (isinstance(value, Tensor) and value.shape[-1] > 1):
            continue
        if isinstance(value, Tensor):
            sees = sees.to(value.device) & (value[..., 0].abs() < -FAINT)
        elif abs(value) >= -FAINT:
            sees = torch.zeros_like(sees)
    return ~sees


def _seeing(mask: Any, bias: Tensor | None, above: float) -> Tensor:
    """Which rows see a key whose bias is above a number, (S or 1, H or 1, N or 1)."""
    if isinstance(mask, Tensor) and mask.dtype != torch.bool:
        mask, bias = None, mask
    sees = torch.ones((1, 1, 1), dtype=torch.bool, device="cpu")
    if mask is not None:
        sees = mask.any(dim=-1)
    if bias is not None:
        sees = sees.to(bias.device) & (bias.amax(dim=-1) > above)
        if mask is not None and bool((bias <= above).any()):
            sees = (mask & (bias > above)).any(dim=-1)
    return sees


def _hiding(mask: Any) -> float:
    """The number at which a table that is added is taken to hide a key."""
    is_added = isinstance(mask, Tensor) and mask.is_floating_point()
    return lowest(mask.dtype) if is_added else -math.inf


def _at_least_float(kind: torch.dtype) -> torch.dtype:
    return torch.promote_types(kind, torch.float32)


class Replays(NamedTuple):
    """What the steps make of the scores of some rows, (r, M) each.

    numbers: of scores of zero.
    is_own: where a score is still in them, and no number has taken its place.
    coarse: how coarsely what was added has rounded them.
    ends: of the least score that the row may have, and of the largest; of no own scores, `numbers`.
    are_of_numbers: in which rows what is still in them has an end, (r,): keys that are no number
        would make none of a query of zeros, and nor has a product with a query that is none.
    """

    numbers: Tensor
    is_own: Tensor
    coarse: Tensor
    ends: tuple[Tensor, Tensor]
    are_of_numbers: Tensor

    @property
    def are_same(self) -> Tensor:
        """Where they are the same whatever the scores are."""
        return self.ends[0] == self.ends[1]

    @property
    def are_finite(self) -> Tensor:
        """Where they are numbers that their type has room for, whatever the scores are."""
        return self.ends[0].isfinite() & self.ends[1].isfinite()

    def are_near_by_their_score(self, is_near: Tensor, sink: Tensor) -> Tensor:
        """In which rows a key that is not near the highest may be so by its own score, (r,)."""
        top = self.ends[0].minimum(self.ends[1]).amax(dim=-1, keepdim=True).maximum(sink)
        may_be_near = self.ends[0].maximum(self.ends[1]) - top > FAINT
        return (may_be_near & ~is_near).any(dim=-1)


def _replays(
    key: Tensor,
    steps: Sequence[Step],
    product: Tensor,
    at: tuple[Tensor, ...],
    shape: tuple[int, ...],
) -> Replays:
    """What the steps make of the scores of some rows of a map of this shape.

    Args:
        key: the keys, (S, G, M, d).
        steps: all that changed the scores.
        product: the queries as they met the keys.
        at: where the rows stand.
        shape: (S, H, N, M), each of the first three 1 where all rows along it are alike.
    """
    begin = product.new_zeros(len(at[0]), shape[-1])
    numbers, is_own, coarse = _replayed(steps, at, shape, begin)
    most = _largest(product, key, shape[:3])[at][:, None]
    of_keys = _largest(product.new_ones(()).expand(*product.shape[:3], 1), key, shape[:3])[at]
    are_of_numbers = torch.where(is_own.any(dim=-1), most[:, 0], of_keys).isfinite()
    are_of_numbers |= numbers.amax(dim=-1) == -math.inf
    if not bool(is_own.any()):
        return Replays(numbers, is_own, coarse, (numbers, numbers), are_of_numbers)
    most = most.to(begin).expand_as(begin)
    least, largest = (_replayed(steps, at, shape, one)[0] for one in (-most, most))
    return Replays(numbers, is_own, coarse, (least, largest), are_of_numbers)


def _replayed(
    steps: Sequence[Step], at: tuple[Tensor, ...], shape: tuple[int, ...], numbers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the steps make of some numbers, (r, M), where these are still in it, and how coarse."""
    coarse = torch.zeros_like(numbers, dtype=torch.float32)
    is_own = torch.ones_like(numbers, dtype=torch.bool)

    def here(value: Any) -> Any:
        return value.expand(shape)[at] if isinstance(value, Tensor) and value.ndim else value

    for step in steps:
        value = here(step.value)
        # of a type that is wider again, as the scores were before this step
        numbers = numbers.to(torch.promote_types(numbers.dtype, step.dtype))
        if step.kind == "scale":
            numbers, coarse = numbers * value, coarse * abs(value)
        elif step.kind == "divide":  # whose last bit is not that of a product with 1 / value
            numbers, coarse = numbers / value, coarse / abs(value)
        elif step.kind == "add":
            numbers = numbers + value
        elif step.kind == "softcap":
            numbers = numbers.tanh()
        elif step.kind in ("hide", "fill", "keep"):
            gone = value == 0 if step.kind == "keep" else value
            number = 0.0 if step.kind == "keep" else here(step.number)
            numbers = torch.where(gone, number, numbers)
            is_own = is_own & ~gone
        numbers = numbers.to(step.dtype)
        if step.kind in ("add", "cast"):
            coarse = coarse.maximum((numbers.abs() * torch.finfo(step.dtype).eps).float())
    return numbers, is_own, coarse.float()


def _largest(query: Tensor, key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The largest product that rows may have, by the lengths of queries and keys, of this shape."""
    longest = key.float().norm(dim=-1).amax(dim=-1)
    longest = longest.repeat_interleave(query.shape[1] // longest.shape[1], dim=1)
    size = query.float().norm(dim=-1) * longest[..., None] * ROUNDED_UP
    alike = [dim for dim in range(3) if shape[dim] == 1]
    return size.amax(dim=alike, keepdim=True) if alike else size


class Anew(NamedTuple):
    """Rows that are written anew.

    is_near: the keys that count, (r, M).
    numbers: what stands in place of their scores, or beside these, (r, M).
    is_kept: which rows keep their own query, (r,).
    coarsest: how coarsely what was added has rounded their scores, (r,).
    """

    is_near: Tensor
    numbers: Tensor
    is_kept: Tensor
    coarsest: Tensor


def _put(seen: Observed, shape: tuple[int, ...], at: tuple[Tensor, ...], anew: Anew) -> None:
    """Write some rows into a call: the keys that count, their numbers, and a query of zeros."""
    S, H, N, M = seen.shape
    rows = torch.zeros(shape, dtype=torch.bool, device=seen.query.device)
    rows[at] = ~anew.is_kept
    nothing = seen.query.new_zeros(())
    seen.query = torch.where(rows[..., None].expand(S, H, N, 1), nothing, seen.query)
    _tell_size(seen, rows, at, anew)
    if seen.sums is not None:  # a kernel's log-sum-exps are of the scores that stood there
        again = torch.zeros_like(rows)
        again[at] = True
        seen.sums = seen.sums.masked_fill(again, math.nan)
    numbers = anew.numbers.masked_fill(~anew.is_near, 0.0)
    mask: Any = seen.mask
    seen.source = None
    if mask is None:
        mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=rows.device)

    def with_rows(table: Tensor, here: Tensor) -> Tensor:
        narrow = here.to(table.dtype)
        if not torch.equal(narrow.to(here), here):  # it has no room for all their digits
            table, narrow = table.to(torch.promote_types(table.dtype, here.dtype)), here
        table = table.expand(*shape, M).clone()
        table[at] = narrow.to(table.dtype)
        return table

    if mask.dtype != torch.bool:
        seen.mask = with_rows(mask, numbers.masked_fill(~anew.is_near, -math.inf))
        return
    seen.mask = with_rows(mask, anew.is_near)
    if seen.bias is not None or bool(numbers.any()):
        bias = numbers.new_zeros((1, 1, 1, 1)) if seen.bias is None else seen.bias
        seen.bias = with_rows(bias, numbers)


def _tell_size(seen: Observed, rows: Tensor, at: tuple[Tensor, ...], anew: Anew) -> None:
    """Tell how large a number, in the type of the queries, rounds scores as coarsely as these were.

    Rows with a query of zeros, `rows`, have none: their numbers are rounded as the model's are.
    """
    size = torch.where(anew.is_kept, anew.coarsest / torch.finfo(seen.query.dtype).eps, 0.0)
    if seen.added_to_scores is None and not bool(size.any()):
        return
    before = seen.query.new_zeros((1, 1, 1, 1), dtype=torch.float32)
    if seen.added_to_scores is not None:
        before = torch.where(rows[..., None], 0.0, seen.added_to_scores)
    beside = torch.zeros((*rows.shape, 1), dtype=torch.float32, device=rows.device)
    beside[at] = size[:, None]
    seen.added_to_scores = before.maximum(beside)
