"""A head's whole map pooled once, on disk: its tiles of any level then cost a read.

The finest level has cells of 32 × 32 weights, each level above pools 2 × 2 of the one below. What a
mask hides was never written, so the file of a causal map fills half of its size.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.recorder import Call
from heedful.views.explorer.tiles import SIDE, Place, highest, slice_of

FINEST = 5
BAND = 16  # rows of finest cells that are computed before somebody is asked whether to go on


class Pyramid:
    """The levels of one head for one way of pooling; they are there once `build` has ended."""

    def __init__(self, call: Call, head: int, reduce: str) -> None:
        self.call, self.head, self.reduce = call, head, reduce
        self.done = 0.0
        self.is_whole = False
        self._folder = tempfile.TemporaryDirectory(prefix="heedful-")
        levels = range(FINEST, max(FINEST, highest(call)) + 1)
        self._levels = {level: self._level(level, np.float32) for level in levels}
        self._shown = {level: self._level(level, np.bool_) for level in levels}

    @property
    def bytes(self) -> int:
        """What the files fill on the disk."""
        return sum(path.stat().st_blocks * 512 for path in Path(self._folder.name).iterdir())

    def build(self, going_on: Callable[[], bool] = lambda: True) -> bool:
        """Compute all levels; False where `going_on` ended it, and later it goes on from there."""
        finest, cell = self._levels[FINEST], 1 << FINEST
        start = int(self.done * len(finest))
        for first in range(start, len(finest), BAND):
            if not going_on():
                return False
            self._compute(range(first, min(first + BAND, len(finest))), cell)
            self.done = min(first + BAND, len(finest)) / len(finest)
        for level in range(FINEST + 1, max(self._levels) + 1):
            self._levels[level][:] = self._above(self._levels[level - 1], level)
            self._shown[level][:] = _any(self._shown[level - 1])
        self.is_whole = True
        return True

    def tile(self, place: Place) -> Tensor:
        """The pixels of a tile of a level from FINEST on; NaN is hidden."""
        place.region(self.call)
        level = min(place.level, max(self._levels))
        rows, columns = (slice(at * SIDE, (at + 1) * SIDE) for at in (place.row, place.column))
        found = np.where(
            self._shown[level][rows, columns], self._levels[level][rows, columns], np.nan
        )
        return torch.from_numpy(found)

    def _compute(self, band: range, cell: int) -> None:
        _, N, M = self.call.shape
        queries = range(N)[band.start * cell : band.stop * cell]
        mask = self.call.causes.mask
        seen = range(M) if mask is None else mask.span(queries, self.call.shape)
        # whole cells of the keys that any of these queries may see; the rest stays unwritten
        first = seen.start // cell
        keys = range(M)[first * cell : -(-seen.stop // cell) * cell]
        if not len(keys):
            return
        region = slice_of(queries), slice_of(keys)
        found = self.call.pooled((cell, cell), self.head, *region, reduce=self.reduce)
        here = slice(band.start, band.stop), slice(first, first + found.shape[1])
        self._levels[FINEST][here] = found.numpy()
        hidden = self.call.hidden_cells((cell, cell), self.head, *region)
        self._shown[FINEST][here] = ~hidden.numpy()

    def _level(self, level: int, kind: type) -> np.ndarray:
        _, N, M = self.call.shape
        shape = tuple(max(1, math.ceil(size / (1 << level))) for size in (N, M))
        path = Path(self._folder.name) / f"{level}-{kind.__name__}"
        return np.memmap(path, kind, "w+", shape=shape)

    def _above(self, below: np.ndarray, level: int) -> np.ndarray:
        """Cells of 2 × 2 below; those at the edge weigh as many weights as they have."""
        four = _fours(below)
        if self.reduce == "max":
            return four.amax((1, 3)).numpy()
        _, N, M = self.call.shape
        rows, columns = (
            _pairs(torch.nn.functional.pad(_sizes(size, level - 1), (0, below.shape[axis] % 2)))
            for axis, size in enumerate((N, M))
        )
        shares = rows[:, :, None, None] * columns
        return (four * shares).sum((1, 3)).numpy()


def _fours(below: np.ndarray) -> Tensor:
    """(r, 2, c, 2): each 2 × 2 cells, with zeros beyond the edge."""
    table = torch.from_numpy(np.asarray(below))
    table = torch.nn.functional.pad(table, (0, table.shape[1] % 2, 0, table.shape[0] % 2))
    return table.unflatten(1, (-1, 2)).unflatten(0, (-1, 2))


def _any(below: np.ndarray) -> np.ndarray:
    return _fours(below).any(3).any(1).numpy()


def _sizes(size: int, level: int) -> Tensor:
    """How many rows each cell of a level has, in float32."""
    cell = 1 << level
    return (size - torch.arange(0, max(size, 1), cell)).clamp(0, cell).float()


def _pairs(sizes: Tensor) -> Tensor:
    """The share that each of two cells has of the one above, (n, 2)."""
    two = sizes.view(-1, 2)
    return two / two.sum(1, keepdim=True)
