"""Tells of scores that float16 has no room for: what is above 65,504 is infinite in the model.

`Causes` has numbers in its place, since it multiplies by all factors at once, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.following.scores import Change

MOST = torch.finfo(torch.float16).max


def may_lack(query: Tensor, key: Tensor, changes: Sequence[Change]) -> bool:
    """Whether scores may have become infinite in float16, and smaller after that.

    One that stays as large as that gets all of its row or nothing, in float32 as well.

    Args:
        query, key: as they met, (…, d).
        changes: what was done to their product.
    """
    kinds = [query.dtype, *(change.dtype for change in changes)]
    if torch.float16 not in kinds or not (query.numel() and key.numel()):
        return False
    lengths = [one.float().norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0) for one in (query, key)]
    return is_outgrown(float(lengths[0].amax() * lengths[1].amax()), query.dtype, changes)


def is_outgrown(size: float, kind: torch.dtype, changes: Sequence[Change]) -> bool:
    """Whether scores of this size at most, and of this type, may outgrow float16 and shrink again.

    >>> half = torch.float16
    >>> steps = [Change("scale", 1e3, [], half), Change("scale", 1e-3, [], half)]
    >>> [is_outgrown(size, half, steps) for size in (60.0, 70.0)]
    [False, True]
    """
    is_over = kind == torch.float16 and size > MOST
    for change in changes:
        if change.kind in ("scale", "divide"):
            least, most = _sizes(change.value)
            if change.kind == "divide":
                least, most = (1 / one if one else math.inf for one in (most, least))
            if is_over and least < 1:
                return True
            size *= most
        elif change.kind == "add":
            size += _sizes(change.value)[1]
        elif change.kind == "softcap":
            size = 1.0
        is_over |= change.dtype == torch.float16 and size > MOST
    return False


def _sizes(value: Any) -> list[float]:
    """The least and the largest size of a number, or of the numbers of a table."""
    if not isinstance(value, Tensor):
        return [abs(value)] * 2 if math.isfinite(value) else [1.0, 1.0]
    sizes = value.float().abs()
    return torch.stack(torch.where(sizes.isfinite(), sizes, 1.0).aminmax()).tolist()


def times(query: Tensor, factor: Tensor) -> Tensor:
    """Queries times a factor, in a type that has room: the model multiplied their scores by it."""
    made = query * factor
    if query.dtype != torch.float16 or bool(made.isfinite().all()):
        return made
    return query.float() * factor
