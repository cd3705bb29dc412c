"""Looks where a model's own weights are apart from those that its causes make.

The rows that are compared later tell of most faults. These stand in rows that may not be among
them, and the whole map of weights is at hand here, as the model made it by itself.

S sequences, H heads, N queries, M keys.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.doors.score_causes import at_rows, blocks_of
from heedful.recorder.observed import Observed

WEIGHED = 1e-12  # so small a weight is no fault in a map, which is right to 1e-3


def is_hidden_key_weighed(weights: Tensor, mask: Any) -> bool:
    """Whether a key that a number was to hide has weight all the same.

    Args:
        weights: the model's own, (S, H, N, M).
        mask: what is taken to hide keys, boolean, which broadcasts to them.
    """
    found = [
        (~at_rows(rows, mask) & (at_rows(rows, weights) > WEIGHED)).any()
        for rows in blocks_of(weights.shape)
    ]
    return bool(found) and bool(torch.stack(found).any())  # a device is waited for once


def shows_numbers_for_nan(weights: Tensor, seen: Observed) -> bool:
    """Whether a call would have numbers in a row of which a step in the model made NaN.

    As minus infinity times 0 does, or a number that its type has no room for.

    Args:
        weights: the model's own, (S, H, N, M).
        seen: the call, whose mask is boolean or added to the scores.
    """
    for rows in blocks_of(weights.shape):
        is_nan = at_rows(rows, weights).isnan().any(dim=-1)
        for table in (seen.mask, seen.bias):
            if isinstance(table, Tensor):  # a row that sees nothing is shown as nothing
                here = at_rows(rows, table)
                is_nan = is_nan & (here if here.dtype == torch.bool else here > -math.inf).any(-1)
        if bool(is_nan.any()) and bool((is_nan & _highest(seen, rows).isfinite()).any()):
            return True
    return False


def _highest(seen: Observed, rows: slice) -> Tensor:
    """The highest score of some rows of a call, (S, H, n); no number if one of them is none."""
    kind = torch.promote_types(seen.query.dtype, torch.float32)
    key = seen.key.repeat_interleave(seen.shape[1] // seen.key.shape[1], dim=1)
    scores = at_rows(rows, seen.query).to(kind) @ key.to(kind).mT * seen.scale
    if seen.softcap:
        scores = seen.softcap * (scores / seen.softcap).tanh()
    for table in (seen.bias, seen.mask):
        if isinstance(table, Tensor):
            here = at_rows(rows, table)
            is_mask = here.dtype == torch.bool
            scores = scores.masked_fill(~here, -math.inf) if is_mask else scores + here
    return scores.amax(dim=-1)
