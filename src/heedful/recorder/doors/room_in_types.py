"""Tells of scores that their type had no room for on the way, and that changed again after that.

In float16 what is above 65,504 is infinite in the model, and what is below 6e-8 is 0. Later factors
leave it so, where `Causes` has a number: it multiplies by all of them at once. Other types have
more room, not endless room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.doors.score_causes import widest
from heedful.recorder.following.scores import Change

HIDES = 1e3  # a number that is still this large at the softmax hides its key, infinite or not
HUGE = 1e10  # float32 has no two scores of this size whose difference leaves the lesser any weight
MOVES = 1e-3  # an error of a score that may show in its weight

Factors = Sequence[tuple[float, float]]  # the least and the most that each change multiplies by


def may_lack(query: Tensor, key: Tensor, changes: Sequence[Change]) -> bool:
    """Whether scores may have been too large or too small for their type, and changed after that.

    Args:
        query, key: as they met, (…, d).
        changes: what was done to their product.
    """
    if not (query.numel() and key.numel()):
        return False
    kinds, factors = [query.dtype, *(one.dtype for one in changes)], factors_of(changes)
    if has_vanished(kinds, factors):
        return True
    shrinks = math.prod(min(least, 1.0) for least, _ in factors)
    if shrinks * min(map(_most, kinds)) > HUGE:  # what was infinite leaves nothing anyway
        return False
    return is_outgrown(_longest(query, key), query.dtype, changes, factors)


def has_vanished(kinds: Sequence[torch.dtype], factors: Factors) -> bool:
    """Whether the digits of a small score were lost before it grew again.

    The steps between two numbers of a type are nowhere finer than its smallest one.

    Args:
        kinds: the types of the product and of the scores after each change.
        factors: of the changes.

    >>> [has_vanished([torch.float16] * 2, [(1.0, growth)]) for growth in (1e4, 1e5)]
    [False, True]
    """
    grows = 1.0
    for kind, (_, most) in zip(reversed(kinds), [(1.0, 1.0), *reversed(factors)], strict=True):
        grows *= most
        if _smallest(kind) * grows > 2 * MOVES:
            return True
    return False


def is_outgrown(
    size: float, kind: torch.dtype, changes: Sequence[Change], factors: Factors
) -> bool:
    """Whether scores of this size at most, and of this type, may outgrow a type and shrink again.

    A product that outgrows it counts by itself: something that is added may bring it back. What
    grows later, and stays as large, gets all of its row or nothing in `Causes` too.

    >>> half = torch.float16
    >>> steps = [Change("scale", 1e3, [], half), Change("scale", 1e-3, [], half)]
    >>> [is_outgrown(size, half, steps, factors_of(steps)) for size in (60.0, 70.0)]
    [False, True]
    """
    if size > _most(kind):
        return True
    is_over = False
    for number, change in enumerate(changes):
        least, most = factors[number]
        if is_over and least < 1:
            return True
        size *= most
        shrinks = math.prod(later for later, _ in factors[number + 1 :])
        if change.kind == "add" and shrinks < 1:
            added = _sizes(change.value)[1]
            size += added if added * shrinks < HIDES else 0.0
        elif change.kind == "softcap":
            size, is_over = 1.0, False
        is_over |= size > _most(change.dtype)
    return False


def factors_of(changes: Sequence[Change]) -> Factors:
    """What changes multiply scores by, at least and at most; 1 where they do not."""
    return [_factors(change) for change in changes]


def _factors(change: Change) -> tuple[float, float]:
    if change.kind not in ("scale", "divide"):
        return 1.0, 1.0
    least, most = _sizes(change.value)
    return (least, most) if change.kind == "scale" else (1 / most, 1 / least)


def _sizes(value: Any) -> tuple[float, float]:
    """The least and the largest size of a number, or of the numbers of a table.

    0, infinity and NaN count as 1: they leave no score that could be too large or too small.
    """
    if not isinstance(value, Tensor):
        size = abs(value) if value and math.isfinite(value) else 1.0
        return size, size
    sizes = value.to(widest(value.device)).abs()
    sizes = torch.where(sizes.isfinite() & (sizes > 0), sizes, 1.0)
    least, most = torch.stack(sizes.aminmax()).tolist()
    return least, most


def _longest(query: Tensor, key: Tensor) -> float:
    """The largest size that a product of a query and a key of one head can have.

    Those that are no numbers count as 0: their scores are none anyway.
    """
    lengths = [
        one.to(widest(one.device)).norm(dim=-1).masked_fill(~one.isfinite().all(dim=-1), 0.0)
        for one in (query, key)
    ]
    longest = lengths[0].amax(dim=-1) * lengths[1].amax(dim=-1)  # of each head
    return float(longest.nan_to_num(nan=math.inf, posinf=math.inf).amax())


def _most(kind: torch.dtype) -> float:
    return torch.finfo(kind).max


def _smallest(kind: torch.dtype) -> float:
    return torch.finfo(kind).smallest_normal * torch.finfo(kind).eps


def times(query: Tensor, factor: Tensor) -> Tensor:
    """Queries times a factor, in a type that has room: the model multiplied their scores by it."""
    made = query * factor
    return made if bool(made.isfinite().all()) else query.to(widest(query.device)) * factor
