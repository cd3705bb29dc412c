"""A head's whole map pooled once, on disk: its tiles of any level then cost a read.

The finest level has cells of 32 × 32 weights, each level above pools 2 × 2 of the one below. What a
mask hides is never computed nor written: a number of 0 is hidden, and a weight of zero is written
as −0. The file has no name, and is gone with its process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.ops.score_tables import as_slice
from heedful.recording import Call
from heedful.views.explorer.background import Job
from heedful.views.explorer.tiles import SIDE, Place, highest

FINEST = 5
BAND = 16  # rows of finest cells that are computed in one step
CELLS = 1 << 24  # weights that are computed in one step


class _Level(NamedTuple):
    """Where a level stands in the file: its first byte, and how many rows and columns it has."""

    start: int
    rows: int
    columns: int


class Pyramid(Job):
    """The levels of one head for one way of pooling; a tile is there once its rows are."""

    def __init__(self, call: Call, head: int, reduce: str) -> None:
        self.call, self.head, self.reduce = call, head, reduce
        self._rows = 0  # of the finest level that are there
        self._levels: dict[int, _Level] = {}
        start = 0
        for level in range(FINEST, max(FINEST, highest(call)) + 1):
            rows, columns = (max(1, -(-size // (1 << level))) for size in call.shape[1:])
            self._levels[level] = _Level(start, rows, columns)
            start += rows * columns * 4
        self._size = start

    @property
    def bytes(self) -> int:
        """What the file fills on the disk."""
        return os.fstat(self._file.fileno()).st_blocks * 512

    def steps(self) -> Iterator[None]:
        """Band after band, of all levels."""
        self._file = tempfile.TemporaryFile(prefix="heedful-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._file.truncate(self._size)
        total = self._levels[FINEST].rows
        band = max(1, min(BAND, CELLS // (max(1, self.call.shape[2]) << FINEST)))
        for first in range(0, total, band):
            last = min(first + band, total)
            self._compute(range(first, last))
            for level in range(FINEST + 1, max(self._levels) + 1):
                rows = range(self._there(level, first), self._there(level, last))
                if len(rows):
                    self._pool(level, rows)
            self._rows, self.done = last, last / total
            yield

    def has(self, place: Place) -> bool:
        """Whether a tile can be read already."""
        level = min(place.level, max(self._levels))
        stop = min(self._levels[level].rows, (place.row + 1) * SIDE)
        return level >= FINEST and self._there(level, self._rows) >= stop

    def tile(self, place: Place) -> Tensor:
        """The pixels of a tile of a level from FINEST on; NaN is hidden."""
        place.region(self.call)
        rows, columns = (slice(at * SIDE, (at + 1) * SIDE) for at in (place.row, place.column))
        found = np.array(self._table(place.level)[rows, columns])
        hidden = (found == 0) & ~np.signbit(found)
        return torch.from_numpy(np.where(hidden, np.float32(np.nan), np.abs(found)))

    def _there(self, level: int, finest: int) -> int:
        """How many rows of a level are there, once so many of the finest are."""
        if finest == self._levels[FINEST].rows:
            return self._levels[level].rows
        return finest >> (level - FINEST)

    def _compute(self, band: range) -> None:
        _, N, M = self.call.shape
        cell = 1 << FINEST
        queries = range(N)[band.start * cell : band.stop * cell]
        mask = self.call.causes.mask
        seen = range(M) if mask is None else mask.span(queries, self.call.shape)
        # whole cells of the keys that any of these queries may see; the rest stays unwritten
        first = seen.start // cell
        keys = range(M)[first * cell : -(-seen.stop // cell) * cell]
        if not len(keys):
            return
        region = as_slice(queries), as_slice(keys)
        found = self.call.pooled((cell, cell), self.head, *region, reduce=self.reduce)
        hidden = self.call.hidden_cells((cell, cell), self.head, *region)
        self._write(FINEST, band.start, first, _marked(found, ~hidden))

    def _pool(self, level: int, rows: range) -> None:
        """Rows of a level from those of the one below: cells at the edge weigh what they have."""
        below = np.array(self._table(level - 1)[2 * rows.start : 2 * rows.stop])
        four = _fours(torch.from_numpy(below))
        shown = (four.abs() > 0) | four.signbit()
        if self.reduce == "max":
            found = four.abs().amax((1, 3))
        else:
            _, N, M = self.call.shape
            down, across = _shares(N, level)[as_slice(rows)], _shares(M, level)
            found = (four.abs() * down[:, :, None, None] * across).sum((1, 3))
        seen = shown.any(3).any(1)
        columns = seen.any(0).nonzero()[:, 0].tolist() or [0]
        part = slice(columns[0], columns[-1] + 1)
        self._write(level, rows.start, columns[0], _marked(found, seen)[:, part])

    def _write(self, level: int, first: int, column: int, found: Tensor) -> None:
        start, _, columns = self._levels[level]
        for at, row in enumerate(found.numpy(), first):
            self._file.seek(start + (at * columns + column) * 4)
            self._file.write(row.tobytes())
        self._file.flush()  # a full disk is an error here, where a mapped file ends the process

    def _table(self, level: int) -> np.ndarray:
        start, rows, columns = self._levels[level]
        return np.memmap(self._file, np.float32, "r", start, (rows, columns))


def _marked(found: Tensor, shown: Tensor) -> Tensor:
    """Numbers as they are written: 0 where hidden, −0 where a weight of zero is shown."""
    return torch.where(shown, torch.where(found == 0, -0.0, found), 0.0).float()


def _fours(below: Tensor) -> Tensor:
    """(r, 2, c, 2): each 2 × 2 cells, with hidden ones beyond the edge."""
    table = torch.nn.functional.pad(below, (0, below.shape[1] % 2, 0, below.shape[0] % 2))
    return table.unflatten(1, (-1, 2)).unflatten(0, (-1, 2))


def _shares(size: int, level: int) -> Tensor:
    """The share that each of two cells below has of one of a level, (cells, 2)."""
    cell = 1 << (level - 1)
    cells = 2 * max(1, -(-size // (2 * cell)))
    two = (size - torch.arange(cells, device="cpu") * cell).clamp(0, cell).float().view(-1, 2)
    return two / two.sum(1, keepdim=True).clamp(min=1)
