"""Heat maps: a region of a weight map pooled to a small picture.

With the log-sum-exp of a row, a weight is exp(score − log-sum-exp), so only the cells of the region
are computed. Each block of cells is pooled while it is in the CPU's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import ALL, as_slice, intersection
from heedful.ops.inputs import AttentionInputs, block_entries, no_autocast
from heedful.ops.map_region import weights_of_scores
from heedful.ops.score_blocks import allowed_to, fill_scores

QUERIES = 512  # maximum rows of a block: in larger blocks, fewer keys are masked for every row


class Cells(NamedTuple):
    """One axis of a region, divided into cells of equal size; the last cell may be smaller.

    within: the queries or the keys of the region.
    size: queries or keys per cell.
    """

    within: range
    size: int

    @property
    def lengths(self) -> Tensor:
        """The number of queries or keys in each cell."""
        starts = torch.arange(0, len(self.within), self.size, device="cpu")
        return (len(self.within) - starts).clamp(max=self.size)

    def overlapping(self, part: range) -> range:
        """Return the indices of the cells that overlap with a part of the region."""
        first = self.within.start
        return range((part.start - first) // self.size, -(-(part.stop - first) // self.size))

    def members(self, cells: range) -> range:
        """Return the queries or keys in these cells."""
        start = self.within.start + cells.start * self.size
        return range(start, min(start + len(cells) * self.size, self.within.stop))


def heatmap(
    inputs: AttentionInputs,
    sums: Tensor,
    size: int = 256,
    reduce: str = "mean",
    queries: slice = ALL,
    keys: slice = ALL,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """Pool a region of the map to at most size × size cells, (H, rows, columns).

    A cell is the mean or the maximum of its weights; masked weights count as 0. All cells have the
    same size, except that the last row and the last column of cells may be smaller.

    Args:
        inputs: query, key, mask, … of the map.
        sums: (H, n), the log-sum-exp of each row of the region.
        size: the maximum number of rows and of columns of cells.
        reduce: "mean" or "max".
        queries, keys: the region, as slices without a step; default all.
        progress: called with the completed fraction, 0 to 1.

    Raises:
        ArgumentError: a size below 1, an unknown `reduce`, or a slice with a step.

    >>> from heedful.ops.masks import Causal
    >>> words = torch.zeros(1, 4, 2)
    >>> sums = torch.arange(1.0, 5.0).log()[None]  # query n has n + 1 keys with equal scores
    >>> heatmap(AttentionInputs(words, words, 1.0, Causal()), sums, size=2)
    tensor([[[0.5000, 0.0000],
             [0.2917, 0.2083]]])
    """
    if size < 1:
        raise ArgumentError(f"size={size}", expected="at least 1 cell")
    _, N, M = inputs.shape
    rows, columns = len(range(N)[queries]), len(range(M)[keys])
    cell = max(1, -(-rows // size)), max(1, -(-columns // size))
    return pooled(inputs, sums, cell, reduce, queries, keys, progress)


def pooled(
    inputs: AttentionInputs,
    sums: Tensor,
    cell: tuple[int, int],
    reduce: str = "mean",
    queries: slice = ALL,
    keys: slice = ALL,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """Pool a region of the map to cells of a fixed size: `cell`, the queries and the keys per cell.

    All tiles of a large map have the same cell size. Other arguments and errors: see `heatmap`.
    """
    check_region(reduce, queries, keys)
    inputs = inputs.upcast()
    H, N, M = inputs.shape
    rows, columns = Cells(range(N)[queries], cell[0]), Cells(range(M)[keys], cell[1])
    cells = inputs.query.new_zeros(H, len(rows.lengths), len(columns.lengths))
    pool, join = (torch.sum, torch.add) if reduce == "mean" else (torch.amax, torch.maximum)
    with no_autocast(inputs.query):
        for heads, run, cell_columns, block in _blocks(inputs, sums, rows, columns):
            block_cells = pool_axis(pool_axis(block, rows.size, 1, pool), columns.size, 2, pool)
            target = cells[heads, as_slice(rows.overlapping(run)), as_slice(cell_columns)]
            target.copy_(join(target, block_cells))
            if progress is not None:
                completed = run.start - rows.within.start + len(run) * heads.stop / H
                progress(completed / len(rows.within))
    if progress is not None:
        progress(1.0)
    if reduce == "max":
        return cells.clamp_(max=1)
    return cells / (rows.lengths[:, None] * columns.lengths).to(cells)


def check_region(reduce: str, queries: slice, keys: slice) -> None:
    """Raise `ArgumentError` for an unknown `reduce` or a slice with a step."""
    if reduce not in ("mean", "max"):
        raise ArgumentError(f"reduce={reduce!r}", expected="'mean' or 'max'")
    if {queries.step, keys.step} - {None, 1}:
        raise ArgumentError(
            "queries or keys with a step for a heat map",
            expected="slices without a step",
            remedy="weights(queries=…, keys=…) takes any indices",
        )


def _blocks(
    inputs: AttentionInputs, sums: Tensor, rows: Cells, columns: Cells
) -> Iterator[tuple[slice, range, range, Tensor]]:
    """Yield for each block its heads, its rows, its columns of cells, and its weights (h, n, m).

    A block has complete cells along the keys. Along the queries it has complete cells or a part of
    a single cell. The next block overwrites the weights.
    """
    H, _, M = inputs.shape
    entries, group = block_entries(inputs.query), H // inputs.key.shape[0]
    buffer = inputs.query.new_empty(0)
    max_rows = min(QUERIES, max(1, entries // max(1, group * len(columns.within))))
    for run in _runs(rows, max_rows):
        span = range(M) if inputs.mask is None else inputs.mask.span(run, inputs.shape)
        visible = intersection(span, columns.within)
        if not len(visible):
            continue
        cells = columns.overlapping(visible)
        allowed = allowed_to(inputs, run, columns.members(cells))
        width = len(run) * len(allowed.keys)
        step = group * max(1, min(H, entries // width) // group)
        if buffer.numel() < step * width:
            buffer = inputs.query.new_empty(step * width)
        first = run.start - rows.within.start
        for start in range(0, H, step):
            heads = slice(start, min(start + step, H))
            count = heads.stop - start
            block = buffer[: count * width].view(count, len(run), len(allowed.keys))
            fill_scores(block, inputs, heads, run, allowed.of_heads(heads))
            yield heads, run, cells, weights_of_scores(block, sums[heads, first : first + len(run)])


def _runs(rows: Cells, max_rows: int) -> Iterator[range]:
    """Yield runs of rows that fill complete cells; split cells of more than `max_rows` rows."""
    length = max(1, max_rows // rows.size) * rows.size
    for start in rows.within[::length]:
        cells = range(start, min(start + length, rows.within.stop))
        for first in cells[::max_rows]:
            yield range(first, min(first + max_rows, cells.stop))


def pool_axis(block: Tensor, size: int, dim: int, pool: Callable[..., Tensor]) -> Tensor:
    """Pool an axis in pieces of `size` by `pool`, such as torch.amax; the last may be smaller."""
    pieces, rest = divmod(block.shape[dim], size)
    full = block.narrow(dim, 0, pieces * size).unflatten(dim, (pieces, size))
    parts = [pool(full, dim=dim + 1)] if pieces or not rest else []
    if rest:
        parts.append(pool(block.narrow(dim, pieces * size, rest), dim=dim, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
