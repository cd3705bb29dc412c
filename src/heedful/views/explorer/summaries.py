"""What a file without the causes knows of a call: pooled maps, and the largest weights of its rows.

Cells are of 2ⁿ × 2ⁿ weights. Where a cell is one weight, the map is there whole; else of each cell
its mean and its largest weight, and beside them the largest weights of rows, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from heedful.ops.blocks import Block
from heedful.ops.causes import HIDDEN
from heedful.ops.evenly import evenly
from heedful.ops.hidden import hidden_cells
from heedful.ops.statistics import Statistic
from heedful.ops.top import largest
from heedful.recording import Call
from heedful.recording.progress import Progress, Tell

TOP = 8  # weights of a row
FINER = 2**15  # a half-precision weight is kept times this, so that 10⁻⁹ has all its digits too
# Bytes of a number after it was deflated, where it is as random as it can be
HALF, SINGLE, KEY = 1.65, 3.25, 0.9
Way = tuple[Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor]]
HOPED = 1.06  # of the room, for rows: what is too much is left out once the bytes are known
FOR_MAPS = 0.3  # of the room at the least, where cells have several weights


@dataclass(frozen=True)
class Plan:
    """What is kept of a call: cells of so many weights a side, in half precision, and which rows.

    rows: (n,), the queries whose largest weights are kept, evenly chosen.
    """

    cell: int
    half: bool
    rows: Tensor


@dataclass(frozen=True)
class Summary:
    """What was found by a plan; of H heads.

    most, mean: (H, r, c), NaN where a cell is hidden whole; `mean` is None where a cell is one
        weight.
    weights, keys: (H, n, k), the largest of the plan's rows, in the order of the keys; −1 where a
        row has no more.
    """

    plan: Plan
    most: Tensor
    mean: Tensor | None
    weights: Tensor
    keys: Tensor

    def with_rows(self, count: int) -> Summary:
        """The same with fewer rows, evenly chosen."""
        some = evenly(len(self.plan.rows), count)
        rows = self.plan.rows[some]
        weights, keys = self.weights[:, some], self.keys[:, some]
        return replace(self, plan=replace(self.plan, rows=rows), weights=weights, keys=keys)

    def arrays(self) -> dict[str, Tensor]:
        """As the file has it: bytes of one significance together, keys as steps."""
        kept = {"most": self._shown(self.most, up=self.plan.cell > 1)}
        if self.mean is not None:
            kept["mean"] = self._shown(self.mean)
        if len(self.plan.rows):
            kept["rows"] = self.plan.rows
            steps = torch.diff(self.keys + 1, dim=-1, prepend=torch.zeros_like(self.keys[..., :1]))
            kept["weights"] = planes(self.weights.float())
            kept["steps"] = planes(steps.int())
        return kept

    def _shown(self, maps: Tensor, up: bool = False) -> Tensor:
        return planes(_halved(maps * FINER, up) if self.plan.half else maps.float())


def plan(call: Call, room: float) -> Plan:
    """The finest cells that are sure to fit into so many bytes, and rows that are likely to.

    Rows deflate better than the worst of them would, and some can be left out again.
    """
    H, N, M = call.shape
    seen = _share_seen(call)
    if H * N * M * seen * SINGLE <= room:
        return Plan(1, False, torch.arange(0, device="cpu"))
    if H * N * M * seen * HALF <= room:
        return Plan(1, True, evenly(N, _rows_in(room - H * N * M * seen * HALF, call)))
    cell, for_maps = 2, max(FOR_MAPS * room, room - N * _bytes_of_row(call))
    while cell < max(N, M) and _bytes_of_maps(call, cell, seen) > for_maps:
        cell *= 2
    for_rows = HOPED * room - _bytes_of_maps(call, cell, seen)
    return Plan(cell, True, evenly(N, _rows_in(for_rows, call)))


def summary(call: Call, wanted: Plan, progress: Tell = lambda share: None) -> Summary:
    """Gather what a plan wants, in one pass over the rows, with no more than a block in memory."""
    cells, top = Pooled(wanted.cell), TopOfRows(wanted.rows, TOP)
    (most, mean), (weights, keys), _ = call.gathered(cells, top, Progress(progress))
    hidden = hidden_cells(call.checked(), (wanted.cell, wanted.cell))
    most, mean = (table.cpu().masked_fill(hidden, torch.nan) for table in (most, mean))
    return Summary(wanted, most, mean if wanted.cell > 1 else None, weights.cpu(), keys.cpu())


class Pooled(Statistic):
    """The largest and the mean weight of each cell: (H, r, c) each, 0 where a cell is hidden."""

    def __init__(self, cell: int) -> None:
        self.cell = cell
        self.tables: tuple[Tensor, Tensor] | None = None
        self._shape = (0, 0, 0)

    def update(self, block: Block) -> None:
        """Add the block's rows to their cells."""
        H, N, M = self._shape = block.shape
        if self.tables is None:
            most = block.weights.new_zeros(H, -(-N // self.cell), -(-M // self.cell))
            self.tables = most, torch.zeros_like(most)
        if not block.weights.numel():
            return
        rows, columns = _touched(block.queries, self.cell), _touched(block.keys, self.cell)
        wide = _in_pieces(block.weights, block.keys.start, self.cell)
        ways: tuple[Way, Way] = ((torch.amax, torch.maximum), (torch.sum, torch.add))
        for table, (pool, join) in zip(self.tables, ways, strict=True):
            high = _in_pieces(pool(wide, dim=-1).mT, block.queries.start, self.cell)
            here = table[block.heads, rows, columns]
            here.copy_(join(here, pool(high, dim=-1).mT))

    def merge(self, other: Pooled) -> None:
        """Cells of which each has seen other rows."""
        if self.tables is None:
            self.tables, self._shape = other.tables, other._shape
        elif other.tables is not None:
            most, total = zip(self.tables, other.tables, strict=True)
            self.tables = torch.maximum(*most), torch.add(*total)

    def result(self) -> tuple[Tensor, Tensor]:
        """Largest and mean; hidden weights count as 0."""
        most, total = self.seen(self.tables)
        rows, columns = (_sizes(size, self.cell).to(total) for size in self._shape[1:])
        return most.clamp(max=1), total / (rows[:, None] * columns)


class TopOfRows(Statistic):
    """The k largest weights of some rows, in the order of their keys; −1 where there is no more."""

    def __init__(self, rows: Tensor, k: int) -> None:
        self.rows, self.k = rows, k
        self.found: tuple[Tensor, Tensor] | None = None

    def update(self, block: Block) -> None:
        """Write those of the rows that the block has."""
        H, _, M = block.shape
        if self.found is None:
            shape = H, len(self.rows), min(self.k, M)
            keys = torch.full(shape, -1, dtype=torch.int32, device=block.weights.device)
            self.found = block.weights.new_zeros(shape), keys
        ends = torch.tensor([block.queries.start, block.queries.stop], device="cpu")
        start, end = torch.searchsorted(self.rows, ends).tolist()
        k = min(self.k, len(block.keys))
        if start == end or not k:
            return
        within = (self.rows[start:end] - block.queries.start).to(block.weights.device)
        scores, places = largest(block.scores[:, within], k)
        weights = block.weights[:, within].gather(-1, places)
        nothing = scores <= HIDDEN / 2
        keys = (places + block.keys.start).masked_fill(nothing, -1)
        keys, order = keys.sort(dim=-1)
        weights = weights.masked_fill(nothing, 0.0).gather(-1, order)
        for table, new in zip(self.found, (weights, keys), strict=True):
            table[block.heads, start:end, table.shape[-1] - k :] = new.to(table.dtype)

    def merge(self, other: TopOfRows) -> None:
        """Rows that only the other has seen are its own."""
        if self.found is None:
            self.found = other.found
        elif other.found is not None:
            missing = (self.found[1] < 0).all(dim=-1, keepdim=True)
            pairs = zip(self.found, other.found, strict=True)
            first, second = (torch.where(missing, theirs, ours) for ours, theirs in pairs)
            self.found = first, second

    def result(self) -> tuple[Tensor, Tensor]:
        """Weights and keys, (H, n, k)."""
        return self.seen(self.found)


def planes(array: Tensor) -> Tensor:
    """The bytes of numbers, those of one significance together: uint8, (bytes of one, …).

    Where numbers are alike, so are their first bytes: deflated, they then take less.
    """
    numbers = array.contiguous().cpu().numpy()
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    split = little.reshape(-1).view(np.uint8).reshape(-1, little.itemsize).T
    return torch.from_numpy(split.copy()).view(little.itemsize, *array.shape)


def _halved(numbers: Tensor, up: bool) -> Tensor:
    """In half precision, and never 0 for a small one; `up`: never below what it was."""
    single = numbers.float()
    half = single.half()
    low = (half == 0) & (single > 0)
    if up:
        low |= half.float() < single
    return torch.where(low, torch.from_numpy(np.nextafter(half.numpy(), np.float16("inf"))), half)


def _share_seen(call: Call) -> float:
    """The share of the map that the mask does not hide, of a few rows."""
    mask, (_, N, M) = call.causes.mask, call.shape
    if mask is None or not N * M:
        return 1.0
    some = evenly(N, 64).tolist()
    spans = [len(mask.span(range(row, row + 1), call.shape)) for row in some]
    return min(1.0, sum(spans) / (M * len(some)) + 1 / max(1, N))


def _bytes_of_maps(call: Call, cell: int, seen: float) -> float:
    H, N, M = call.shape
    cells = -(-N // cell) * -(-M // cell)
    return H * cells * min(1.0, seen + cell / max(1, M)) * 2 * HALF


def _rows_in(room: float, call: Call) -> int:
    return int(room / max(1.0, _bytes_of_row(call)))


def _bytes_of_row(call: Call) -> float:
    """Of the largest weights of one query, in all heads."""
    H, _, M = call.shape
    return H * min(TOP, M) * (SINGLE + KEY + max(0, M.bit_length() - 9) / 8)


def _touched(run: range, cell: int) -> slice:
    """The cells that a run of queries or keys is in."""
    return slice(run.start // cell, -(-run.stop // cell))


def _in_pieces(block: Tensor, start: int, cell: int) -> Tensor:
    """The last axis, which begins at `start`, in whole cells: (…, cells, cell), 0 beyond it."""
    ahead = start % cell
    padded = torch.nn.functional.pad(block, (ahead, -(ahead + block.shape[-1]) % cell))
    return padded.unflatten(-1, (-1, cell))


def _sizes(size: int, cell: int) -> Tensor:
    """How many queries or keys each cell has; the last one may have fewer."""
    return (size - torch.arange(0, size, cell, device="cpu")).clamp(max=cell)
