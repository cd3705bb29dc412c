"""A region of a map pooled to a picture of any size, without the rest of its rows.

It needs the log-sum-exp of each row, with which a weight is exp(score − log-sum-exp). So a crop of
a long text costs its own cells, and these are pooled block by block, while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import ALL, meeting
from heedful.ops.inputs import AttentionInputs, entries_of, unrounded
from heedful.ops.map_region import exponents
from heedful.ops.score_blocks import allowed_to, fill_scores

QUERIES = 512  # rows of a block at most: with more, there are fewer keys hidden from all of them


class Cells(NamedTuple):
    """An axis of a region, cut into cells of one size; the last may be smaller.

    within: which queries or keys.
    size: how many of them a cell has.
    """

    within: range
    size: int

    @property
    def lengths(self) -> Tensor:
        """How many each cell has."""
        starts = torch.arange(0, len(self.within), self.size, device="cpu")
        return (len(self.within) - starts).clamp(max=self.size)

    def around(self, part: range) -> range:
        """The cells, by number, that a part of the region touches."""
        first = self.within.start
        return range((part.start - first) // self.size, -(-(part.stop - first) // self.size))

    def of(self, cells: range) -> range:
        """What these cells have."""
        start = self.within.start + cells.start * self.size
        return range(start, min(start + len(cells) * self.size, self.within.stop))


def heatmap(
    causes: AttentionInputs,
    sums: Tensor,
    size: int = 256,
    reduce: str = "mean",
    queries: slice = ALL,
    keys: slice = ALL,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """A region of the map pooled to at most size × size cells, (H, rows, columns).

    A cell is the mean, or the largest, of the weights in it; hidden ones count as 0. All cells are
    of one size, except that the last row and the last column of cells may be smaller.

    Args:
        causes: see `AttentionInputs`.
        sums: (H, n), the log-sum-exp of each row of the region.
        size: how many rows and columns of cells there may be.
        reduce: "mean" or "max".
        queries, keys: the region, slices without a step; default all.
        progress: is told of the share that is done, 0 to 1.

    Raises:
        ArgumentError: no cell, another way to pool, or a region with a step.

    >>> from heedful.ops.masks import Causal
    >>> words = torch.zeros(1, 4, 2)
    >>> sums = torch.arange(1.0, 5.0).log()[None]  # query n sees n + 1 keys, all alike
    >>> heatmap(AttentionInputs(words, words, 1.0, Causal()), sums, size=2)
    tensor([[[0.5000, 0.0000],
             [0.2917, 0.2083]]])
    """
    check_region(reduce, queries, keys)
    if size < 1:
        raise ArgumentError(f"size={size}", expected="at least 1 cell")
    _, N, M = causes.shape
    rows, columns = len(range(N)[queries]), len(range(M)[keys])
    cell = max(1, -(-rows // size)), max(1, -(-columns // size))
    return pooled(causes, sums, cell, reduce, queries, keys, progress)


def pooled(
    causes: AttentionInputs,
    sums: Tensor,
    cell: tuple[int, int],
    reduce: str = "mean",
    queries: slice = ALL,
    keys: slice = ALL,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """The same in cells of a given size, (queries, keys) each: what tiles of one map need.

    Arguments and errors beside it as `heatmap`.
    """
    check_region(reduce, queries, keys)
    of = causes.in_precision()
    H, N, M = of.shape
    rows, columns = (
        Cells(whole[part], size)
        for whole, part, size in ((range(N), queries, cell[0]), (range(M), keys, cell[1]))
    )
    found = of.query.new_zeros(H, len(rows.lengths), len(columns.lengths))
    pool, join = (torch.sum, torch.add) if reduce == "mean" else (torch.amax, torch.maximum)
    with unrounded(of.query):
        for heads, run, seen, block in _blocks(of, sums, rows, columns):
            cells = _pooled(_pooled(block, rows.size, 1, pool), columns.size, 2, pool)
            asked = rows.around(run)
            here = found[heads, asked.start : asked.stop, seen.start : seen.stop]
            here.copy_(join(here, cells))
            if progress is not None:
                done = run.start - rows.within.start + len(run) * heads.stop / H
                progress(done / len(rows.within))
    if progress is not None:
        progress(1.0)
    if reduce == "max":
        return found.clamp_(max=1)
    return found / (rows.lengths[:, None] * columns.lengths).to(found)


def check_region(reduce: str, queries: slice, keys: slice) -> None:
    """Refuse another way to pool, or a region with a step."""
    if reduce not in ("mean", "max"):
        raise ArgumentError(f"reduce={reduce!r}", expected="'mean' or 'max'")
    if {queries.step, keys.step} - {None, 1}:
        raise ArgumentError(
            "a heat map of every few rows or columns",
            expected="slices without a step",
            remedy="weights(queries=…, keys=…) takes any indices",
        )


def _blocks(
    of: AttentionInputs, sums: Tensor, rows: Cells, columns: Cells
) -> Iterator[tuple[slice, range, range, Tensor]]:
    """Weights (h, n, m) of some heads and rows, and which cells of the columns they are.

    A block has whole cells of the columns, and whole cells of the rows or a part of one. It is
    overwritten by the next one.
    """
    H, _, M = of.shape
    entries, group = entries_of(of.query), H // of.key.shape[0]
    buffer = of.query.new_empty(0)
    most = min(QUERIES, max(1, entries // max(1, group * len(columns.within))))
    for run in _runs(rows, most):
        span = range(M) if of.mask is None else of.mask.span(run, of.shape)
        seen = meeting(span, columns.within)
        if not len(seen):
            continue
        cells = columns.around(seen)
        allowed = allowed_to(of, run, columns.of(cells))
        width = len(run) * len(allowed.keys)
        step = group * max(1, min(H, entries // width) // group)
        if buffer.numel() < step * width:
            buffer = of.query.new_empty(step * width)
        first = run.start - rows.within.start
        for start in range(0, H, step):
            heads = slice(start, min(start + step, H))
            count = heads.stop - start
            block = buffer[: count * width].view(count, len(run), len(allowed.keys))
            fill_scores(block, of, heads, run, allowed.of_heads(heads))
            yield heads, run, cells, exponents(block, sums[heads, first : first + len(run)])


def _runs(rows: Cells, most: int) -> Iterator[range]:
    """The rows of a region in runs of whole cells; a cell with too many rows is several runs."""
    whole = max(1, most // rows.size) * rows.size
    for start in rows.within[::whole]:
        cells = range(start, min(start + whole, rows.within.stop))
        for first in cells[::most]:
            yield range(first, min(first + most, cells.stop))


def _pooled(block: Tensor, size: int, dim: int, pool: Callable[..., Tensor]) -> Tensor:
    """An axis pooled in pieces of `size`; what is left at its end is a piece of its own."""
    pieces, left = divmod(block.shape[dim], size)
    whole = block.narrow(dim, 0, pieces * size).unflatten(dim, (pieces, size))
    parts = [pool(whole, dim=dim + 1)] if pieces else []
    if left:
        parts.append(pool(block.narrow(dim, pieces * size, left), dim=dim, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
