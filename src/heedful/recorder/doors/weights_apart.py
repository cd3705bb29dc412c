"""Looks where a model's own weights are apart from those that its causes make.

The rows that are compared later tell of most faults. These stand in rows that may not be among
them, and the whole map of weights is at hand here, as the model made it by itself.

S sequences, H heads, N queries, M keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.ops.causes import Causes, scores, unrounded
from heedful.ops.cells import are_blind
from heedful.ops.masks import Dense
from heedful.ops.score_tables import ALL
from heedful.recorder.doors.score_causes import BLOCK, at_rows, blocks_of
from heedful.recorder.observed import Observed, of_sequence
from heedful.recorder.sequences.mask_structure import Masks

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


def shows_numbers_for_nan(is_nan: Tensor, seen: Observed) -> bool:
    """Whether a call would have numbers in a row that is NaN in the model.

    A step has made it so, as minus infinity times 0 does, or a number that its type has no room
    for. A row that its own queries, keys, mask or bias make NaN is NaN in the call too.

    Args:
        is_nan: which rows of the model's own map are NaN, (S, H, N).
        seen: the call, whose mask is boolean or added to the scores.
    """
    seen = Masks().split(replace(seen))  # as it will be shown: what hides by a number hides
    found, is_nan = [], is_nan.expand(seen.shape[:3])
    for sequence in is_nan.flatten(1).any(dim=1).nonzero()[:, 0].tolist():
        of, here = _causes_of(seen, sequence), is_nan[sequence]
        with unrounded(of.query):
            for rows in here.any(dim=0).nonzero()[:, 0].split(_rows_at_once(of)):
                highest = scores(of, rows).amax(dim=-1)
                found.append((here[:, rows] & highest.isfinite() & ~are_blind(highest)).any())
    return bool(found) and bool(torch.stack(found).any())


def _rows_at_once(of: Causes) -> int:
    H, _, M = of.shape
    return max(1, BLOCK // (H * M))


def _causes_of(seen: Observed, sequence: int) -> Causes:
    """One sequence of a call, whose mask has been split from its bias."""
    mask, bias = (
        of_sequence(table, sequence) if isinstance(table, Tensor) else None
        for table in (seen.mask, seen.bias)
    )
    allowed = None if mask is None else Dense(mask.expand(-1, *seen.shape[2:]))
    query, key = seen.query[sequence], seen.key[sequence]
    of = Causes(query, key, seen.scale, allowed, bias, seen.softcap)
    return of.in_precision().of_heads(ALL)
