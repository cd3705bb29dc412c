"""Tells of scores that float16 has no room for: what is above 65,504 is infinite in the model.

There `Causes` has numbers: it multiplies by all factors at once, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.following.scores import Change

MOST = torch.finfo(torch.float16).max
HIDES = 1e3  # a number that is still this large at the softmax hides its key, infinite or not


def may_lack(query: Tensor, key: Tensor, changes: Sequence[Change]) -> bool:
    """Whether scores may have been too large for float16 on the way, and were made smaller again.

    Args:
        query, key: as they met, (…, d).
        changes: what was done to their product.
    """
    kinds = [query.dtype, *(change.dtype for change in changes)]
    if torch.float16 not in kinds or not (query.numel() and key.numel()):
        return False
    lengths = [one.float().norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0) for one in (query, key)]
    longest = lengths[0].amax(dim=-1) * lengths[1].amax(dim=-1)  # of each head
    return is_outgrown(float(longest.amax()), query.dtype, changes)


def is_outgrown(size: float, kind: torch.dtype, changes: Sequence[Change]) -> bool:
    """Whether scores of this size at most, and of this type, may outgrow float16 and shrink again.

    A product that outgrows it counts by itself: something that is added may bring it back. What
    grows later, and stays as large, gets all of its row or nothing, in float32 as well.

    >>> half = torch.float16
    >>> steps = [Change("scale", 1e3, [], half), Change("scale", 1e-3, [], half)]
    >>> [is_outgrown(size, half, steps) for size in (60.0, 70.0)]
    [False, True]
    """
    if kind == torch.float16 and size > MOST:
        return True
    is_over, factors = False, [_factors(change) for change in changes]
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
        is_over |= change.dtype == torch.float16 and size > MOST
    return False


def _factors(change: Change) -> tuple[float, float]:
    """What a change multiplies scores by, at least and at most; 1 where it does not."""
    if change.kind not in ("scale", "divide"):
        return 1.0, 1.0
    least, most = _sizes(change.value)
    if change.kind == "scale":
        return least, most
    return (1 / most if most else math.inf), (1 / least if least else math.inf)


def _sizes(value: Any) -> tuple[float, float]:
    """The least and the largest size of a number, or of the numbers of a table.

    Infinity and NaN count as 1: the model has no numbers in their rows anyway.
    """
    if not isinstance(value, Tensor):
        size = abs(value) if math.isfinite(value) else 1.0
        return size, size
    sizes = value.float().abs()
    least, most = torch.stack(torch.where(sizes.isfinite(), sizes, 1.0).aminmax()).tolist()
    return least, most


def times(query: Tensor, factor: Tensor) -> Tensor:
    """Queries times a factor, in a type that has room: the model multiplied their scores by it."""
    made = query * factor
    if query.dtype != torch.float16 or bool(made.isfinite().all()):
        return made
    return query.float() * factor
