"""Handles rows from which a model hides all keys by a large number, and not by minus infinity.

All scores of such a row are equal then, and its softmax weighs all keys alike. With minus infinity
the row has no weights. So the row is given a query of zeros, and a mask that hides no key of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

SWALLOWS = -1e8  # a score of ordinary size is lost in float32 when this is added to it


def filled(
    query: Tensor, allowed: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries, mask and bias with even rows, where hidden scores were replaced by one number.

    Args:
        query: (S, H, N, d).
        allowed: (S or 1, H or 1, N or 1, M), True where a score was left as it was.
        bias: what is added to the scores.

    Returns:
        query, allowed and bias, in which rows that see no key see all keys alike.
    """
    even = ~allowed.any(dim=-1, keepdim=True)
    if not bool(even.any()):
        return query, allowed, bias
    bias = None if bias is None else bias.masked_fill(even, 0.0)
    return _without(query, even), allowed | even, bias


def added(query: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and table with even rows, where the table adds a large number to all of a row.

    A number that is not so large leaves the scores as they were, but for rounding: it is a bias.
    """
    even = (table <= SWALLOWS).all(dim=-1, keepdim=True) & table.isfinite().all(-1, keepdim=True)
    if not bool(even.any()):
        return query, table
    return _without(query, even), table.masked_fill(even, 0.0)


def _without(query: Tensor, rows: Tensor) -> Tensor:
    """The queries with zeros in these rows, so that all their scores are equal."""
    return torch.where(rows.expand(*query.shape[:3], 1), query.new_zeros(()), query)
