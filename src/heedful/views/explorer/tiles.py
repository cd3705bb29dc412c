"""A map at any zoom, in tiles: 256 × 256 pixels, of 2^level × 2^level cells each.

A tile is exact where its region is small, or where a pyramid of the head stands; else it is
sampled, which its answer says: of each row of pixels, the weights of one query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import as_slice, meeting
from heedful.ops.inputs import entries_of
from heedful.recording import Call
from heedful.views.explorer.jobs import Job

SIDE = 256  # pixels
DIRECT = 4  # the highest level that is computed at once: regions of 4,096 × 4,096 cells
CELLS = (SIDE << DIRECT) ** 2
QUERIES = 32  # whose weights are sampled in one go
FINEST = 5  # the level of a pyramid's cells: at 131,072 tokens they take 64 MB
BAND = 16  # rows of cells that are computed in one step
STEP = 1 << 24  # weights that are computed in one step


class Place(NamedTuple):
    """Which tile: of a head by its number, a level, and the tile's row and column in it."""

    head: int
    level: int
    row: int
    column: int
    reduce: str = "mean"

    def region(self, call: Call) -> tuple[range, range]:
        """The queries and keys of a tile; an edge may have fewer.

        Raises:
            ArgumentError: a tile outside the map.
        """
        _, N, M = call.shape
        top = highest(call)
        if not 0 <= self.level <= top:
            raise ArgumentError(f"level {self.level}", expected=f"0 to {top} of this map")
        wide = SIDE << self.level
        rows = range(N)[self.row * wide : (self.row + 1) * wide]
        columns = range(M)[self.column * wide : (self.column + 1) * wide]
        if self.row < 0 or self.column < 0 or not rows or not columns:
            raise ArgumentError(
                f"tile {self.row}, {self.column} of level {self.level}",
                expected=f"one of a map of {N:,} × {M:,}",
            )
        return rows, columns


def highest(call: Call) -> int:
    """The level at which the whole map is one tile."""
    _, N, M = call.shape
    return max(0, (max(N, M, 1) - 1).bit_length() - (SIDE.bit_length() - 1))


def is_small(call: Call, place: Place) -> bool:
    """Whether the rows of a tile are so few weights that they are computed whole."""
    rows, _ = place.region(call)
    return len(rows) * call.shape[2] <= entries_of(call.causes.query)


def exact(call: Call, place: Place) -> Tensor:
    """The pixels of a tile, each the mean or the largest weight of its cells; NaN is hidden."""
    rows, columns = (as_slice(run) for run in place.region(call))
    cell = 1 << place.level
    if is_small(call, place):  # whole rows are as exact as `weights`, also in half precision
        part = call.weights(place.head, rows, columns).float()
        found = pooled(part, cell, place.reduce)
    else:
        found = call.pooled((cell, cell), place.head, rows, columns, reduce=place.reduce)
    return found.masked_fill(call.hidden_cells((cell, cell), place.head, rows, columns), torch.nan)


def sampled(call: Call, place: Place) -> Tensor:
    """The pixels of a tile, each of the weights of one query in the middle of its row."""
    rows, columns = place.region(call)
    cell = 1 << place.level
    some = [min(start + cell // 2, rows[-1]) for start in rows[::cell]]
    found = torch.zeros(len(some), -(-len(columns) // cell), dtype=torch.float32, device="cpu")
    for first in range(0, len(some), QUERIES):
        few = some[first : first + QUERIES]
        seen = seen_by(call, range(few[0], few[-1] + 1), columns, cell)
        if len(seen):
            part = pooled_keys(call.weights(place.head, few, as_slice(seen)), cell, place.reduce)
            at = (seen.start - columns.start) // cell
            found[first : first + len(few), at : at + part.shape[1]] = part
    hidden = [
        call.hidden_cells((1, cell), place.head, slice(row, row + 1), as_slice(columns))
        for row in some
    ]
    return found.masked_fill(torch.cat(hidden), torch.nan)


def seen_by(call: Call, queries: range, columns: range, cell: int) -> range:
    """Whole cells of the keys that any of these queries may see."""
    mask = call.causes.mask
    seen = meeting(columns, columns if mask is None else mask.span(queries, call.shape))
    if not len(seen):
        return seen
    start = columns.start + (seen.start - columns.start) // cell * cell
    return range(start, min(columns.stop, start + -(-(seen.stop - start) // cell) * cell))


def pooled(part: Tensor, cell: int, reduce: str) -> Tensor:
    """Weights (n, m) pooled in cells of `cell` × `cell`; those at the edge have fewer."""
    return pooled_keys(pooled_keys(part, cell, reduce).mT, cell, reduce).mT


def pooled_keys(part: Tensor, cell: int, reduce: str) -> Tensor:
    """Weights (…, m) pooled in pieces of `cell` keys; what is left at the end is a piece too."""
    left = -part.shape[-1] % cell
    pieces = torch.nn.functional.pad(part, (0, left)).unflatten(-1, (-1, cell))
    if reduce == "max":
        return pieces.amax(-1)
    sizes = torch.full((pieces.shape[-2],), float(cell), dtype=torch.float32, device="cpu")
    sizes[-1] -= left
    return pieces.sum(-1) / sizes


class Pyramid(Job):
    """A head's map pooled once: its tiles of higher levels then cost a look at its cells.

    A tile is there once its rows are. What a mask hides is never computed: a cell that is hidden
    whole is NaN.
    """

    def __init__(self, call: Call, head: int, reduce: str) -> None:
        self.call, self.head, self.reduce = call, head, reduce
        self._rows = 0  # that are there
        self._cells = torch.empty(0, 0, dtype=torch.float32, device="cpu")

    def steps(self) -> Iterator[None]:
        """Band after band."""
        rows, columns = (-(-size // (1 << FINEST)) for size in self.call.shape[1:])
        self._cells = self._cells.new_full((rows, columns), torch.nan)
        band = max(1, min(BAND, STEP // (max(1, self.call.shape[2]) << FINEST)))
        for first in range(0, rows, band):
            self._rows = min(first + band, rows)
            self._compute(range(first, self._rows))
            self.done = self._rows / rows
            yield

    def has(self, place: Place) -> bool:
        """Whether a tile can be read already."""
        if place.level < FINEST or not len(self._cells):
            return False
        stop = (place.row + 1) * SIDE << (place.level - FINEST)
        return self._rows >= min(stop, len(self._cells))

    def tile(self, place: Place) -> Tensor:
        """The pixels of a tile of a level from FINEST on; NaN is hidden."""
        by = 1 << (place.level - FINEST)
        rows, columns = (slice(at * SIDE * by, (at + 1) * SIDE * by) for at in place[2:4])
        part = self._cells[rows, columns]
        weights, seen = part.nan_to_num(), (~part.isnan()).float()
        if self.reduce == "max":
            pixels = pooled(weights, by, "max")
        else:  # cells at the edge weigh what they have
            _, N, M = self.call.shape
            sizes = _sizes(N)[rows, None] * _sizes(M)[columns]
            pixels = pooled(weights * sizes, by, "mean") / pooled(sizes, by, "mean")
        return pixels.masked_fill(pooled(seen, by, "max") == 0, torch.nan)

    def _compute(self, band: range) -> None:
        _, N, M = self.call.shape
        cell = 1 << FINEST
        queries = range(N)[band.start * cell : band.stop * cell]
        keys = seen_by(self.call, queries, range(M), cell)
        if not len(keys):  # they stay hidden
            return
        first = keys.start // cell
        region = as_slice(queries), as_slice(keys)
        cells = self.call.pooled((cell, cell), self.head, *region, reduce=self.reduce).float().cpu()
        hidden = self.call.hidden_cells((cell, cell), self.head, *region)
        part = self._cells[as_slice(band), first : first + cells.shape[1]]
        part.copy_(cells.masked_fill(hidden, torch.nan))


def _sizes(size: int) -> Tensor:
    """How many queries or keys each cell has."""
    firsts = torch.arange(0, size, 1 << FINEST, device="cpu")
    return (size - firsts).clamp(max=1 << FINEST).float()
