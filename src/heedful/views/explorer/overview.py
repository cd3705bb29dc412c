"""The heads of a call at a glance: a small picture of each and its scores.

First of some queries, which is marked as sampled, then of all, head after head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from heedful.head_kinds import MEANS, SCORES
from heedful.ops.indexing import evenly
from heedful.ops.masked_cells import hidden_cells
from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block
from heedful.recording import Call
from heedful.recording.head_scores import Even, Evidence, Gathering, evidence
from heedful.recording.heads import heads_with
from heedful.views.explorer import tiles
from heedful.views.explorer.jobs import Job, bands

SMALL = 32  # cells of a head's small picture
FEW = 1 << 23  # weights whose scores are computed at once
SOME = 1 << 25  # weights from which small pictures are sampled, unless rows are very long
RUNS, RUN = 8, 16  # runs of neighbouring queries on which scores are first told
BAND = 1 << 20  # weights that are computed in one step


class Overview(Job):
    """Small pictures and scores of a call's heads: sampled, then exact.

    Args:
        call: whose heads; of two texts, with the tokens that are sure.
        even: the same for the calls of a text.
    """

    def __init__(self, call: Call, even: Even) -> None:
        self.call, self._even = call, even
        self._known = [False] * call.shape[0]
        self._numbers: dict[str, Evidence] = {}
        self._maps: Tensor | None = None
        if call.proof == "refuted":  # no number of it is true
            self.done, self.is_whole = 1.0, True
        elif math.prod(call.shape) <= FEW:
            self._maps = call.heatmap(SMALL, reduce="max")
            self._numbers, self._known = evidence(call, even), [True] * call.shape[0]
            self.done, self.is_whole = 1.0, True

    def maps(self) -> Tensor:
        """(H, r, c), the largest weight of each cell; sampled until the job is whole."""
        if self._maps is None:
            self._maps = self._sampled()
        return self._maps

    def heads(self) -> tuple[list[str], dict[str, Tensor]]:
        """The kind of each head, "" where it is not known yet, and its numbers, NaN likewise.

        They are the scores and means by their names; beside each score, as "chance …" and
        "queries …", what shuffled keys give and on how many queries it rests.
        """
        kinds, numbers = scores_told(self.call, self._numbers)
        pairs = zip(kinds, self._known, strict=True)
        return [kind if known or self.is_whole else "" for kind, known in pairs], numbers

    def steps(self) -> Iterator[None]:
        """Some runs of queries of every head, then all queries of one head after the other."""
        H, N, M = self.call.shape
        for i in range(H):
            for _ in self._head(i, _runs(N)):
                yield
        maps = self.maps()
        for i in range(H):
            picture = Pictured(self.call)
            whole = [run for _, run in bands(range(N), M, BAND)]
            for share in self._head(i, whole, picture):
                self.done = (i + share) / H
                yield
            maps[i] = picture.result()[0]

    def _head(self, i: int, runs: list[range], *others: Statistic) -> Iterator[float]:
        """What some runs of queries tell of a head; after each the share that is done."""
        gathering = Gathering(self.call, self._even, slice(i, i + 1))
        for at, run in enumerate(runs):
            gathering.take(run, *others)
            yield (at + 1) / len(runs)
        self._keep(i, gathering.found())

    def _keep(self, i: int, found: dict[str, Evidence]) -> None:
        H = len(self._known)
        self._known[i] = True
        for name, of in found.items():
            unknown = torch.full((H,), torch.nan, dtype=torch.float32, device="cpu")
            chance = None if of.chance is None else unknown.clone()
            blank = Evidence(unknown, chance, torch.zeros(H, dtype=torch.long, device="cpu"))
            kept = self._numbers.setdefault(name, blank)
            for whole, part in zip(kept, of, strict=True):
                if whole is not None and part is not None:
                    whole[i] = part[0]

    def _sampled(self) -> Tensor:
        """Small pictures of single queries, of as many as are quick."""
        H, N, M = self.call.shape
        down, across = (max(1, -(-size // SMALL)) for size in (N, M))
        each = max(1, min(4, down, SOME // (H * M * SMALL)))
        starts = torch.arange(0, N, down, device="cpu")
        ends = (starts + down).clamp(max=N) - 1
        halves = 2 * torch.arange(each, device="cpu") + 1  # the middles of as many equal parts
        some = (starts[:, None] + (ends - starts)[:, None] * halves // (2 * each)).flatten()
        found = []
        for head in self.call.heads:
            part = tiles.pooled_keys(self.call.weights(head, some), across, "max")
            found.append(part.unflatten(0, (-1, each)).amax(1))
        return torch.stack(found)


def scores_told(call: Call, evidence: dict[str, Evidence]) -> tuple[list[str], dict[str, Tensor]]:
    """The kind of each head and its numbers, as `Overview.heads` has them."""
    found = heads_with(call, 0, evidence)
    numbers = {name: _array(getattr(head, name) for head in found) for name in MEANS}
    for name in SCORES:
        numbers[name] = _array(head.scores[name] for head in found)
        numbers[f"chance {name}"] = _array(head.chance[name] for head in found)
        numbers[f"queries {name}"] = _array(head.queries[name] for head in found)
    return [head.kind for head in found], numbers


class Pictured(Statistic):
    """The largest weight of each cell of small pictures of heads: (H, r, c).

    Args:
        call: whose heads.
        side: cells of a picture, at most.
    """

    def __init__(self, call: Call, side: int = SMALL) -> None:
        _, N, M = call.shape
        self._cell = max(1, -(-N // side)), max(1, -(-M // side))
        self._found: Tensor | None = None

    def update(self, block: Block) -> None:
        """Take a block in."""
        (down, across), (H, N, M) = self._cell, block.shape
        if self._found is None:
            self._found = block.weights.new_zeros(H, -(-N // down), -(-M // across))
        if not block.weights.numel():
            return
        wide = _pooled(block.weights, block.keys.start, across)
        cells = _pooled(wide.mT, block.queries.start, down).mT
        first, left = block.queries.start // down, block.keys.start // across
        rows, columns = cells.shape[1:]
        part = self._found[block.heads, first : first + rows, left : left + columns]
        part.copy_(torch.maximum(part, cells))

    def merge(self, other: Pictured) -> None:
        """The larger of both."""
        if self._found is None or other._found is None:
            self._found = other._found if self._found is None else self._found
        else:
            self._found = torch.maximum(self._found, other._found)

    def result(self) -> Tensor:
        """(H, r, c), 0 where a cell is hidden."""
        return self.seen(self._found).clamp(max=1).cpu()

    def hidden(self, call: Call) -> Tensor:
        """Which cells the mask hides whole, (H or 1, r, c)."""
        return hidden_cells(call.checked(), self._cell)


def _pooled(part: Tensor, start: int, cell: int) -> Tensor:
    """The largest number of each cell along the last axis, which begins at `start`."""
    return tiles.pooled_keys(torch.nn.functional.pad(part, (start % cell, 0)), cell, "max")


def _runs(size: int) -> list[range]:
    """Evenly placed runs of neighbours."""
    firsts = evenly(max(0, size - RUN) + 1, RUNS).tolist()
    return [range(first, min(first + RUN, size)) for first in firsts]


def _array(numbers: Iterable[float | None]) -> Tensor:
    return torch.tensor(
        [math.nan if number is None else number for number in numbers],
        dtype=torch.float32,
        device="cpu",
    )
