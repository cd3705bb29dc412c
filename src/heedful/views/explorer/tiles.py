"""A map at any zoom as tiles of 256 × 256 pixels; a pixel of level L pools 2^L × 2^L weights.

A tile is exact if its region is small, or if the pyramid (the coarse map) of its head already has
the tile. Otherwise it is sampled: each row of pixels shows the weights of a single query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.heatmap import pool_axis
from heedful.ops.indexing import as_slice, check_index, intersection
from heedful.ops.inputs import block_entries
from heedful.recording import Call
from heedful.views.explorer.jobs import Job

SIDE = 256  # pixels
DIRECT = 4  # the highest level that is computed at once: regions of 4,096 × 4,096 weights
CELLS = (SIDE << DIRECT) ** 2
QUERIES = 32  # sampled queries per computation
FINEST = 5  # the lowest level of a pyramid, which takes 64 MB at 131,072 tokens
BAND = 16  # rows of the pyramid per step
STEP = 1 << 24  # weights per step


class Tile(NamedTuple):
    """A tile: the number of its head, its level, its row and column in this level, the pooling."""

    head: int
    level: int
    row: int
    column: int
    reduce: str = "mean"

    def region(self, call: Call) -> tuple[range, range]:
        """Return the queries and keys of the tile; a tile at the edge has fewer.

        Raises:
            ArgumentError: a tile outside the map.
        """
        _, N, M = call.shape
        size = SIDE << check_index("level", self.level, highest_level(call) + 1)
        row = check_index("row of tiles", self.row, -(-N // size))
        column = check_index("column of tiles", self.column, -(-M // size))
        return range(N)[row * size :][:size], range(M)[column * size :][:size]


def highest_level(call: Call) -> int:
    """Return the lowest level at which one tile covers the full map."""
    _, N, M = call.shape
    return max(0, (max(N, M, 1) - 1).bit_length() - (SIDE.bit_length() - 1))


def is_small(call: Call, tile: Tile) -> bool:
    """Return whether the full rows of a tile have few enough weights to be computed at once."""
    rows, _ = tile.region(call)
    return len(rows) * call.shape[2] <= block_entries(call.causes.query)


def exact(call: Call, tile: Tile) -> Tensor:
    """Compute a tile: each pixel is the mean or maximum of its weights; see `_marked`."""
    rows, columns = (as_slice(run) for run in tile.region(call))
    cell = 1 << tile.level
    if is_small(call, tile):  # full rows are as exact as `weights`, also in half precision
        part = call.weights(tile.head, rows, columns).float()
        pixels = pooled(part, cell, tile.reduce)
    else:
        pixels = call.pooled((cell, cell), tile.head, rows, columns, reduce=tile.reduce)
    return _marked(pixels, call.masked_cells((cell, cell), tile.head, rows, columns))


def _marked(pixels: Tensor, masked: Tensor) -> Tensor:
    """Mark masked pixels by NaN, and pixels with a weight that is not a number by infinity."""
    return pixels.nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(masked, torch.nan)


def sampled(call: Call, tile: Tile) -> Tensor:
    """Compute the pixels of a tile from the middle query of each row of pixels."""
    rows, columns = tile.region(call)
    cell = 1 << tile.level
    middles = [min(start + cell // 2, rows[-1]) for start in rows[::cell]]
    pixels = torch.zeros(len(middles), -(-len(columns) // cell), dtype=torch.float32, device="cpu")
    for first in range(0, len(middles), QUERIES):
        queries = middles[first : first + QUERIES]
        keys = visible_keys(call, range(queries[0], queries[-1] + 1), columns, cell)
        if len(keys):
            part = pooled_keys(call.weights(tile.head, queries, as_slice(keys)), cell, tile.reduce)
            start = (keys.start - columns.start) // cell
            pixels[first : first + len(queries), start : start + part.shape[1]] = part
    masked = [
        call.masked_cells((1, cell), tile.head, slice(row, row + 1), as_slice(columns))
        for row in middles
    ]
    return _marked(pixels, torch.cat(masked))


def visible_keys(call: Call, queries: range, columns: range, cell: int) -> range:
    """Return the range of `columns` that some query may attend to, extended to full cells."""
    mask = call.causes.mask
    keys = intersection(columns, columns if mask is None else mask.span(queries, call.shape))
    if not len(keys):
        return keys
    start = columns.start + (keys.start - columns.start) // cell * cell
    return range(start, min(columns.stop, start + -(-(keys.stop - start) // cell) * cell))


def pooled(part: Tensor, cell: int, reduce: str) -> Tensor:
    """Pool weights (n, m) in cells of `cell` × `cell`; cells at the edge are smaller."""
    return pooled_keys(pooled_keys(part, cell, reduce).mT, cell, reduce).mT


def pooled_keys(part: Tensor, cell: int, reduce: str) -> Tensor:
    """Pool weights (…, m) in pieces of `cell` keys; the last piece may be smaller."""
    return pool_axis(part, cell, part.ndim - 1, torch.mean if reduce == "mean" else torch.amax)


class Pyramid(Job):
    """The map of a head, pooled to level `FINEST`, as a source of tiles of this or a higher level.

    A tile is available once its rows are computed. Fully masked cells are NaN.
    """

    def __init__(self, call: Call, head: int, reduce: str) -> None:
        self.call, self.head, self.reduce = call, head, reduce
        self._rows = 0  # computed so far
        self._cells = torch.empty(0, 0, dtype=torch.float32, device="cpu")

    def steps(self) -> Iterator[None]:
        """Compute band after band of rows."""
        rows, columns = (-(-size // (1 << FINEST)) for size in self.call.shape[1:])
        self._cells = self._cells.new_full((rows, columns), torch.nan)
        band = max(1, min(BAND, STEP // (max(1, self.call.shape[2]) << FINEST)))
        for first in range(0, rows, band):
            self._rows = min(first + band, rows)
            self._compute(range(first, self._rows))
            self.fraction_done = self._rows / rows
            yield

    def has(self, tile: Tile) -> bool:
        """Return whether all rows of the tile are computed."""
        if tile.level < FINEST or not len(self._cells):
            return False
        stop = (tile.row + 1) * SIDE << (tile.level - FINEST)
        return self._rows >= min(stop, len(self._cells))

    def tile(self, tile: Tile) -> Tensor:
        """Return the pixels of a tile of level `FINEST` or higher; NaN if fully masked."""
        factor = 1 << (tile.level - FINEST)
        rows, columns = (slice(i * SIDE * factor, (i + 1) * SIDE * factor) for i in tile[2:4])
        part = self._cells[rows, columns]
        weights, visible = part.nan_to_num(posinf=torch.inf), (~part.isnan()).float()
        if self.reduce == "max":
            pixels = pooled(weights, factor, "max")
        else:  # weighted, since cells at the edge are smaller
            _, N, M = self.call.shape
            sizes = _sizes(N)[rows, None] * _sizes(M)[columns]
            pixels = pooled(weights * sizes, factor, "mean") / pooled(sizes, factor, "mean")
        return pixels.masked_fill(pooled(visible, factor, "max") == 0, torch.nan)

    def _compute(self, band: range) -> None:
        _, N, M = self.call.shape
        cell = 1 << FINEST
        queries = range(N)[band.start * cell : band.stop * cell]
        keys = visible_keys(self.call, queries, range(M), cell)
        if not len(keys):  # the cells stay NaN
            return
        first = keys.start // cell
        region = as_slice(queries), as_slice(keys)
        cells = self.call.pooled((cell, cell), self.head, *region, reduce=self.reduce).float().cpu()
        masked = self.call.masked_cells((cell, cell), self.head, *region)
        part = self._cells[as_slice(band), first : first + cells.shape[1]]
        part.copy_(_marked(cells, masked))


def _sizes(size: int) -> Tensor:
    """Return the number of queries or keys of each cell."""
    firsts = torch.arange(0, size, 1 << FINEST, device="cpu")
    return (size - firsts).clamp(max=1 << FINEST).float()
