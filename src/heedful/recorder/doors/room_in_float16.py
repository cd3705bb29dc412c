"""Tells of scores that float16 has no room for: what is above 65,504 is infinite in the model.

`Causes` multiplies and adds in float32, and by all factors at once, so that it has them as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.following.scores import Change


def may_lack(query: Tensor, key: Tensor, changes: Sequence[Change]) -> bool:
    """Whether a score of finite queries and keys may have become infinite in float16.

    Args:
        query, key: as they met, (…, d).
        changes: what was done to their product.
    """
    if query.dtype != torch.float16 or not (query.numel() and key.numel()):
        return False
    lengths = [one.float().norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0) for one in (query, key)]
    longest = lengths[0].amax() * lengths[1].amax()
    return bool(longest * _highest_factor(changes) > torch.finfo(query.dtype).max)


def _highest_factor(changes: Sequence[Change]) -> float:
    """By how much scores were multiplied at most in float16, where they became smaller again; or 1.

    One that is too large to the end has all of its row, or nothing: so it has in float32 too.
    """
    least = most = highest = 1.0
    for change in changes:
        if change.kind in ("scale", "divide"):
            sizes = _sizes(change.value)
            if change.kind == "divide":
                sizes = [1 / one if one else math.inf for one in reversed(sizes)]
            least, most = least * sizes[0], most * sizes[1]
        if change.dtype == torch.float16:
            highest = max(highest, most)
    return highest if highest > least else 1.0


def _sizes(value: Any) -> list[float]:
    """The least and the largest size of a number, or of those of a table."""
    if not isinstance(value, Tensor):
        return [abs(value)] * 2
    return torch.stack(value.float().abs().aminmax()).tolist()


def times(query: Tensor, factor: Tensor) -> Tensor:
    """Queries times a factor, in a type that has room: the model multiplied their scores by it."""
    made = query * factor
    if query.dtype != torch.float16 or bool(made.isfinite().all()):
        return made
    return query.float() * factor
