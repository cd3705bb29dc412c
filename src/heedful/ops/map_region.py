"""Any part of a map, exactly: by whole rows, or, where these are known, by their log-sum-exp.

A weight is exp(score − log Σ exp(score)) over all keys of its row. Whoever knows that sum needs no
other cell of the row. Such a weight is as exact as the sum is: in float32 some 3·10⁻⁷ of the sum
itself, so 2·10⁻⁶ where it is 7, and 2·10⁻⁵ where it is 60.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.ops.indexing import ALL, Index, indices
from heedful.ops.inputs import (
    HIDDEN,
    AttentionInputs,
    add_sink,
    entries_of,
    run_of,
    scores,
    sinks_of,
    unrounded,
)


def weights(
    causes: AttentionInputs,
    heads: slice = ALL,
    queries: Index = ALL,
    keys: Index = ALL,
    sums: Tensor | None = None,
) -> Tensor:
    """Any part of the map, exactly: (h, n, m), in float32 at the least.

    Rows are normalised over all keys, whichever of them are shown. Memory grows with what is
    shown, and with the rows that are computed at once.

    Args:
        causes: see `AttentionInputs`.
        heads: a slice of the heads.
        queries, keys: a slice or a list of indices; negative ones count from the end.
        sums: (h, n), the log-sum-exp of each of these rows, where it is known: then nothing but
            the cells shown is computed.

    Raises:
        ArgumentError: an index outside the map.
    """
    of = causes.of_heads(heads).in_precision()
    rows, columns = indices(queries, of.shape[1], "query"), indices(keys, of.shape[2], "key")
    if sums is None:
        return by_rows(of, rows, columns)[0]
    with unrounded(of.query):
        return exponents(scores(of, rows, columns), sums).clamp_(max=1)


def by_rows(of: AttentionInputs, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Some keys of whole rows, (H, n, m), and the log-sum-exp of each row, (H, n)."""
    H, _, M = of.shape
    shown, sums = of.query.new_empty(H, len(rows), len(columns)), of.query.new_empty(H, len(rows))
    where = run_of(columns)
    step = max(1, entries_of(of.query) // max(1, H * M))
    for start in range(0, len(rows), step):
        here = slice(start, start + step)
        whole, sums[:, here] = whole_rows(of, rows[here])
        shown[:, here] = whole[:, :, where]
    return shown, sums


def whole_rows(of: AttentionInputs, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The whole rows of some queries, (H, n, M), and their log-sum-exp, (H, n).

    A row that may attend to nothing has zeros and −inf; sinks are among the scores. `of` is in its
    precision already.
    """
    if not of.shape[2]:
        empty = of.query.new_empty(of.shape[0], len(rows), 0)
        return empty, empty.new_full(empty.shape[:-1], -torch.inf)
    whole, highest = softmax_rows(of, rows)
    sums = add_up(of, rows, whole, highest)
    blind = are_blind(highest)
    if bool(blind.any()):
        whole.masked_fill_(blind[..., None], 0.0)
    return whole, sums


def softmax_rows(
    of: AttentionInputs, rows: Tensor, table: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The whole rows of some queries, as if there were no sink, and the highest score of each.

    These are (H, n, M) and (H, n). A row that may attend to nothing weighs all keys alike; the
    highest score tells it (`are_blind`). `table` is the mask of the rows, if it is made already.
    """
    with unrounded(of.query):
        part = scores(of, rows, table=table)
    return part.softmax(dim=-1), part.amax(dim=-1)


def add_up(of: AttentionInputs, rows: Tensor, whole: Tensor, highest: Tensor) -> Tensor:
    """The log-sum-exp of what `softmax_rows` gave, (H, n); sinks get their share of it, in place.

    It is −inf where a row may attend to nothing.
    """
    # The largest weight is exp(highest − sum), but for what a softmax loses of a long row's sum
    above_highest = (whole.sum(dim=-1) / whole.amax(dim=-1)).log()
    if of.sinks is not None:  # beside the highest score, so that large ones cost it no digits
        sinks = sinks_of(of.sinks, rows).to(highest) - highest
        above_highest = add_sink(whole, above_highest, sinks)
    sums = highest + above_highest
    return sums.masked_fill(are_blind(highest), -torch.inf)


def are_blind(highest: Tensor) -> Tensor:
    """Which rows may attend to nothing, by their highest scores."""
    return highest <= HIDDEN / 2


def exponents(scores: Tensor, sums: Tensor) -> Tensor:
    """Weights (…, n, m) of scores and of the log-sum-exp (…, n) of their rows, in place.

    In a row that may attend to nothing, whose sum is −inf, all are zero.
    """
    sums = sums.to(scores).clamp(min=HIDDEN / 2)  # which leaves NaN as it is
    return scores.sub_(sums[..., None]).exp_()
