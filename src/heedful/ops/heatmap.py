"""A region of a map pooled to a picture of any size, gathered block by block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.blocks import Block
from heedful.ops.score_tables import ALL
from heedful.ops.statistics import Statistic


class Heatmap(Statistic):
    """A region of the map pooled to at most size × size cells, (H, rows, columns).

    A cell is the mean, or the largest, of the weights in it; hidden ones count as 0. All cells are
    of one size, except that the last row and the last column of cells may be smaller.

    Args:
        size: how many rows and columns of cells there may be.
        reduce: "mean" or "max".
        queries, keys: the region, slices without a step; default all.
    """

    def __init__(
        self,
        size: int = 256,
        reduce: str = "mean",
        queries: slice = ALL,
        keys: slice = ALL,
    ) -> None:
        if reduce not in ("mean", "max"):
            raise ArgumentError(f"reduce={reduce!r}", expected="'mean' or 'max'")
        if size < 1:
            raise ArgumentError(f"size={size}", expected="at least 1 cell")
        if {queries.step, keys.step} - {None, 1}:
            raise ArgumentError(
                "a heat map of every few rows or columns",
                expected="slices without a step",
                remedy="weights(queries=…, keys=…) takes any indices",
            )
        self.size, self.reduce = size, reduce
        self.queries, self.keys = queries, keys
        self.cells: Tensor | None = None

    def update(self, block: Block) -> None:
        """Pool the columns of the block, then add its rows to theirs."""
        H, N, M = block.shape
        rows, columns = range(N)[self.queries], range(M)[self.keys]
        if self.cells is None:
            self.heights, self.widths = (_cells(len(part), self.size) for part in (rows, columns))
            self.cells = block.weights.new_zeros(H, len(self.heights), len(self.widths))
        own, seen = _meeting(block.queries, rows), _meeting(block.keys, columns)
        if not len(own) or not len(seen):
            return
        part = block.weights[:, _from(own, block.queries), _from(seen, block.keys)]
        pooled = self._columns(part, _from(seen, columns))
        first = (seen.start - columns.start) // int(self.widths[0])
        here = self.cells[block.heads, :, first : first + pooled.shape[-1]]
        row = torch.arange(own.start - rows.start, own.stop - rows.start, device=part.device)
        row //= int(self.heights[0])
        if self.reduce == "mean":
            here.index_add_(1, row, pooled)
        else:
            here.scatter_reduce_(1, row[:, None].expand(pooled.shape), pooled, "amax")

    def merge(self, other: Heatmap) -> None:
        """Add up, or take the larger."""
        if self.cells is None:
            self.__dict__.update(other.__dict__)
        elif other.cells is not None:
            join = torch.add if self.reduce == "mean" else torch.maximum
            self.cells = join(self.cells, other.cells)

    def result(self) -> Tensor:
        """(H, rows, columns)."""
        cells = self.seen(self.cells)
        if self.reduce == "max":
            return cells
        return cells / (self.heights[:, None] * self.widths).to(cells)

    def _columns(self, part: Tensor, columns: slice) -> Tensor:
        """Each row of a part pooled to the cells that it touches, (h, n, cells)."""
        width = int(self.widths[0])
        before, after = columns.start % width, -columns.stop % width
        cells = F.pad(part, (before, after)).unflatten(-1, (-1, width))
        return cells.sum(dim=-1) if self.reduce == "mean" else cells.amax(dim=-1)


def _meeting(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


def _from(part: range, whole: range) -> slice:
    """Where a part stands in the whole."""
    return slice(part.start - whole.start, part.stop - whole.start)


def _cells(total: int, size: int) -> Tensor:
    """How long each of at most `size` pieces is: equal ones, and the last what is left."""
    step = max(1, -(-total // size))
    starts = torch.arange(0, total, step)
    return (total - starts).clamp(max=step)
