"""A head's whole map pooled once: its tiles of any level then cost a look at its cells.

The cells are of 32 × 32 weights; at 131,072 tokens they take 64 MB. What a mask hides is never
computed: a cell that is hidden whole is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.ops.score_tables import as_slice
from heedful.recording import Call
from heedful.views.explorer.background import Job
from heedful.views.explorer.tiles import SIDE, Place, pooled

FINEST = 5
BAND = 16  # rows of cells that are computed in one step
CELLS = 1 << 24  # weights that are computed in one step


class Pyramid(Job):
    """The cells of one head for one way of pooling; a tile is there once its rows are."""

    def __init__(self, call: Call, head: int, reduce: str) -> None:
        self.call, self.head, self.reduce = call, head, reduce
        self._rows = 0  # that are there
        self._cells = torch.empty(0, 0, dtype=torch.float32, device="cpu")

    def steps(self) -> Iterator[None]:
        """Band after band."""
        rows, columns = (-(-size // (1 << FINEST)) for size in self.call.shape[1:])
        self._cells = self._cells.new_full((rows, columns), torch.nan)
        band = max(1, min(BAND, CELLS // (max(1, self.call.shape[2]) << FINEST)))
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
        mask = self.call.causes.mask
        seen = range(M) if mask is None else mask.span(queries, self.call.shape)
        # whole cells of the keys that any of these queries may see; the rest stays hidden
        first = seen.start // cell
        keys = range(M)[first * cell : -(-seen.stop // cell) * cell]
        if not len(keys):
            return
        region = as_slice(queries), as_slice(keys)
        cells = self.call.pooled((cell, cell), self.head, *region, reduce=self.reduce).float().cpu()
        hidden = self.call.hidden_cells((cell, cell), self.head, *region)
        part = self._cells[as_slice(band), first : first + cells.shape[1]]
        part.copy_(cells.masked_fill(hidden, torch.nan))


def _sizes(size: int) -> Tensor:
    """How many queries or keys each cell has."""
    firsts = torch.arange(0, size, 1 << FINEST, device="cpu")
    return (size - firsts).clamp(max=1 << FINEST).float()
