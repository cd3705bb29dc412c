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


def are_numbers_nan(weights: Tensor, seen: Observed) -> bool:
    """Whether some rows of which a step in the model made NaN would have numbers in a call.

    As minus infinity times 0 does, or a number that its type has no room for.

    Args:
        weights: the model's own, (S, H, N, M).
        seen: the call, whose mask is boolean or added to the scores.
    """
    is_nan = weights[..., 0].isnan()  # of all keys of a row, or of none
    at = is_nan.expand(seen.shape[:3]).nonzero().unbind(-1)
    sees = torch.ones((1, 1), dtype=torch.bool, device=weights.device)
    is_number = seen.query.isfinite().all(dim=-1)[at]
    for table in (seen.mask, seen.bias):
        if isinstance(table, Tensor):
            here = table.expand(*seen.shape)[at]
            sees = sees & (here if table.dtype == torch.bool else here > -math.inf)
            is_number &= ~(here.isnan() | (here == math.inf)).any(dim=-1)
    keys = seen.key.isfinite().all(dim=-1)
    of_heads = at[1] // (seen.shape[1] // keys.shape[1])
    is_number &= (keys[at[0], of_heads] | ~sees).all(dim=-1)
    return bool((is_number & sees.any(dim=-1)).any())
