"""Exact weights of any part of a map, from full rows or from the log-sum-exp of each row.

A weight is exp(score − log-sum-exp), where log-sum-exp = log Σ exp(score) over all keys of the row.
If the log-sum-exp is known, no other cell of the row is needed. The relative error of such a weight
is the absolute error of the log-sum-exp. In float32 this error is about 3·10⁻⁷ times the
log-sum-exp: 2·10⁻⁶ for a log-sum-exp of 7, and 2·10⁻⁵ for a log-sum-exp of 60.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.ops.indexing import ALL, Index, indices
from heedful.ops.inputs import (
    MASKED_SCORE,
    AttentionInputs,
    add_sink,
    as_slice_if_consecutive,
    block_entries,
    no_autocast,
    scores,
    sinks_of,
)


def weights(
    inputs: AttentionInputs,
    heads: slice = ALL,
    queries: Index = ALL,
    keys: Index = ALL,
    sums: Tensor | None = None,
) -> Tensor:
    """Compute the weights of any part of the map, (h, n, m), in float32 or float64.

    Rows are normalised over all keys, not only over the requested keys. Memory grows with the
    requested part and with the rows that are computed at once.

    Args:
        inputs: query, key, mask, … of the map.
        heads: a slice of the heads.
        queries, keys: a slice, a list of indices (negative ones count from the end) or booleans.
        sums: (h, n), the log-sum-exp of the requested rows. If passed, only the requested cells
            are computed.

    Raises:
        ArgumentError: an index outside the map.
    """
    inputs = inputs.of_heads(heads).upcast()
    _, N, M = inputs.shape
    rows, columns = indices(queries, N, "query"), indices(keys, M, "key")
    if sums is None:
        return by_rows(inputs, rows, columns)[0]
    with no_autocast(inputs.query):
        return weights_of_scores(scores(inputs, rows, columns), sums).clamp_(max=1)


def by_rows(inputs: AttentionInputs, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Compute full rows; return the weights in `columns` (H, n, m) and the log-sum-exp (H, n)."""
    H, _, M = inputs.shape
    query, index = inputs.query, as_slice_if_consecutive(columns)
    selection, sums = query.new_empty(H, len(rows), len(columns)), query.new_empty(H, len(rows))
    step = max(1, block_entries(query) // max(1, H * M))
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        block_weights, sums[:, block] = whole_rows(inputs, rows[block])
        selection[:, block] = block_weights[:, :, index]
    return selection, sums


def whole_rows(inputs: AttentionInputs, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Compute full rows of upcast inputs: weights (H, n, M) and log-sum-exp (H, n), with sinks.

    A fully masked row has zero weights and a log-sum-exp of −inf.
    """
    if not inputs.shape[2]:
        empty = inputs.query.new_empty(inputs.shape[0], len(rows), 0)
        return empty, empty.new_full(empty.shape[:-1], -torch.inf)
    row_weights, highest = softmax_rows(inputs, rows)
    sums = row_log_sum_exp(inputs, rows, row_weights, highest)
    masked = fully_masked(highest)
    if bool(masked.any()):
        row_weights.masked_fill_(masked[..., None], 0.0)
    return row_weights, sums


def softmax_rows(
    inputs: AttentionInputs, rows: Tensor, table: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute full rows without sinks: weights (H, n, M) and the highest score of each row, (H, n).

    A fully masked row gets equal weights; detect it with `fully_masked(highest)`. `table` is the
    mask of the rows, if it is already built.
    """
    with no_autocast(inputs.query):
        row_scores = scores(inputs, rows, table=table)
    return row_scores.softmax(dim=-1), row_scores.amax(dim=-1)


def row_log_sum_exp(
    inputs: AttentionInputs, rows: Tensor, row_weights: Tensor, highest: Tensor
) -> Tensor:
    """Return the log-sum-exp (H, n) of rows from `softmax_rows`; −inf for a fully masked row.

    If there are sinks, include them and rescale the weights in place.
    """
    # exp(highest − log-sum-exp) is the largest weight, up to the rounding of softmax in a long row
    above_highest = (row_weights.sum(dim=-1) / row_weights.amax(dim=-1)).log()
    if inputs.sinks is not None:  # relative to the highest score: small numbers, small errors
        sinks = sinks_of(inputs.sinks, rows).to(highest) - highest
        above_highest = add_sink(row_weights, above_highest, sinks)
    sums = highest + above_highest
    return sums.masked_fill(fully_masked(highest), -torch.inf)


def fully_masked(highest: Tensor) -> Tensor:
    """Return which rows are fully masked, from their highest scores."""
    return highest <= MASKED_SCORE / 2


def weights_of_scores(scores: Tensor, sums: Tensor) -> Tensor:
    """Turn scores (…, n, m) into weights in place, with the log-sum-exp (…, n) of their rows.

    A fully masked row, whose log-sum-exp is −inf, gets zeros.
    """
    sums = sums.to(scores).clamp(min=MASKED_SCORE / 2)  # clamp keeps NaN
    return scores.sub_(sums[..., None]).exp_()
