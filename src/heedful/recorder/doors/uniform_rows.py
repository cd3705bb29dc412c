"""Rows from which a model hides all keys by a large number, and not by minus infinity.

A softmax of such a row is of equal scores: it weighs all keys alike. With minus infinity a row has
no weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

SWALLOWS = -1e8  # added to a score of ordinary size, nothing is left of the score in float32


def filled(
    query: Tensor, allowed: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Where all scores of a row were replaced by one number.

    Args:
        query: (S, H, N, d).
        allowed: (S or 1, H or 1, N or 1, M), True where a score was left.
        bias: added to the scores.

    Returns:
        the same, with rows that see nothing made to see all keys alike.
    """
    even = ~allowed.any(dim=-1, keepdim=True)
    if not bool(even.any()):
        return query, allowed, bias
    bias = None if bias is None else bias.masked_fill(even, 0.0)
    return _without(query, even), allowed | even, bias


def added(query: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Where the same large number was added to all scores of a row; as `filled`.

    A number that is not so large leaves the scores as they were, but for rounding: it is a bias.
    """
    even = (table <= SWALLOWS).all(dim=-1, keepdim=True) & table.isfinite().all(-1, keepdim=True)
    if not bool(even.any()):
        return query, table
    return _without(query, even), table.masked_fill(even, 0.0)


def _without(query: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows.expand(*query.shape[:3], 1), query.new_zeros(()), query)
