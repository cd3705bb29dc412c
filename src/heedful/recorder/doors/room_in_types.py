"""Tells of scores that may have no room in a type: in the model on their way, or in `Causes`.

In float16 what is above 65,504 is infinite in the model, and what is below 6e-8 is 0. Later changes
leave it so, where `Causes`, which multiplies queries by all factors at once and in float32, has a
number. The other types have more room, not endless room; and of scores above 1e9 their rounding is
not weighed any more. Such a call is shown by the model's own weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from heedful.recorder.doors.score_causes import wide
from heedful.recorder.following.scores import Change

LARGE = 1e9  # the largest score: the rounding of one that is larger is not weighed
LONG = 1e15  # the greatest length of a query or key: times `FAR` it has room in float32
FAR = 1e12  # the most that factors come to which follow each other
HIDES = 1e3  # a number that is still this large at the softmax hides its key, infinite or not
SMALLEST = 2.0**-24  # of float16
MOVES = 5e-3  # an error that float16 leaves in any score of 8

Factors = Sequence[tuple[float, float]]  # the least and the most that each change multiplies by


def may_lack(query: Tensor, key: Tensor, changes: Sequence[Change]) -> bool:
    """Whether scores may be too large or too small for a type that they are in on their way.

    Args:
        query, key: as they met, (…, d).
        changes: what was done to their product.
    """
    if not (query.numel() and key.numel()):
        return False
    factors = factors_of(changes)
    if are_far(factors) or has_vanished([query.dtype, *(one.dtype for one in changes)], factors):
        return True
    sizes = _sizes_of(query, key)
    return not any(
        longest <= LONG and has_room(size, query.dtype, changes, factors) for longest, size in sizes
    )


def are_far(factors: Factors) -> bool:
    """Whether factors that follow each other come to more than `FAR`.

    What stays small makes even weights, however small.

    >>> [are_far([(1e-20, 1e-20), (grows, grows)]) for grows in (1.0, 1e20)]
    [False, True]
    """
    run = 1.0
    for _, most in factors:
        run = max(run, 1.0) * most
        if run > FAR:
            return True
    return False


def has_vanished(kinds: Sequence[torch.dtype], factors: Factors) -> bool:
    """Whether a small score may lose its digits in float16 before it grows again.

    The steps between two numbers are nowhere finer than the smallest one. Where factors are not
    far, other types have smaller ones than any that matters.

    Args:
        kinds: the types of the product and of the scores after each change.
        factors: of the changes.

    >>> [has_vanished([torch.float16] * 2, [(1.0, growth)]) for growth in (1e5, 1e6)]
    [False, True]
    """
    grows = 1.0
    for kind, (_, most) in zip(reversed(kinds), [(1.0, 1.0), *reversed(factors)], strict=True):
        grows *= most
        if kind == torch.float16 and grows * SMALLEST > 2 * MOVES:
            return True
    return False


def has_room(size: float, kind: torch.dtype, changes: Sequence[Change], factors: Factors) -> bool:
    """Whether scores of this size at most, and of this type, have room in each step's type.

    >>> half = torch.float16
    >>> steps = [Change("scale", 1e3, [], half), Change("scale", 1e-3, [], half)]
    >>> [has_room(size, half, steps, factors_of(steps)) for size in (60.0, 70.0)]
    [True, False]
    """
    ways = _most_added, _largest_added  # the second reads tables of N × M
    return any(_has_room(size, kind, changes, factors, added_by) for added_by in ways)


def _has_room(
    size: float,
    kind: torch.dtype,
    changes: Sequence[Change],
    factors: Factors,
    added_by: Callable[[Any, float], float],
) -> bool:
    if not size <= _most(kind):  # so that NaN has none
        return False
    for number, change in enumerate(changes):
        size *= factors[number][1]
        if change.kind == "add":
            size += added_by(change.value, math.prod(least for least, _ in factors[number + 1 :]))
        elif change.kind == "softcap":
            size = 1.0
        if not size <= _most(change.dtype):
            return False
    return True


def _most_added(value: Any, shrinks: float) -> float:
    """The most that an added number counts as that later factors shrink by so much."""
    return HIDES / shrinks if shrinks else math.inf


def _largest_added(value: Any, shrinks: float) -> float:
    """The largest of the added numbers; one that hides its key in the end does not count."""
    added = _sizes(value)[1]
    return added if added * shrinks < HIDES else 0.0


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
    sizes = wide(value, torch.float32).abs()
    sizes = torch.where(sizes.isfinite() & (sizes > 0), sizes, 1.0)
    least, most = torch.stack(sizes.aminmax()).tolist()
    return least, most


def _sizes_of(query: Tensor, key: Tensor) -> Iterator[tuple[float, float]]:
    """Bounds of the longest query or key, and of their product: quick ones first, then near ones.

    Of the near ones, those that are no numbers count as 0: their scores are no numbers or infinite,
    in the model and in `Causes`.
    """
    found = [*query.aminmax(), *key.aminmax()]
    # of a GPU all at once, which is waited for once
    ends = [float(one) for one in found] if query.is_cpu else torch.stack(found).tolist()
    of_query, of_key = (max(-least, most) for least, most in (ends[:2], ends[2:]))
    d = query.shape[-1]
    yield max(of_query, of_key) * math.sqrt(d), of_query * of_key * d
    lengths = [
        vector_norm(one, dim=-1, dtype=torch.promote_types(one.dtype, torch.float32)).masked_fill(
            ~one.isfinite().all(dim=-1), 0.0
        )
        for one in (query, key)
    ]
    of_heads = [one.amax(dim=-1) for one in lengths]
    yield max(float(one.amax()) for one in of_heads), float((of_heads[0] * of_heads[1]).amax())


def is_beyond(table: Any, query: Tensor) -> bool:
    """Whether a table of float64 has numbers that `Causes` of these queries has no room for."""
    if not isinstance(table, Tensor) or table.dtype != torch.float64 or query.dtype == table.dtype:
        return False
    return bool(((table > torch.finfo(torch.float32).max) & table.isfinite()).any())


def times(query: Tensor, factor: Tensor) -> Tensor:
    """Queries times a factor that is not far, in a type that has room for what comes of it.

    The model multiplied their scores by it, which may be larger than queries, or smaller.
    """
    return wide(query, torch.float32) * factor


@functools.cache
def _most(kind: torch.dtype) -> float:
    return min(torch.finfo(kind).max, LARGE)
