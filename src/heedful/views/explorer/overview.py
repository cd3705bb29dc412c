"""The overview of a call: a thumbnail and the scores of each head.

In a long call, both are first estimated from some of the queries, then computed head by head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from heedful.head_kinds import MEANS, SCORES
from heedful.ops.indexing import evenly_spaced
from heedful.ops.masked_cells import masked_cells
from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block
from heedful.recording import Call
from heedful.recording.head_scores import ChanceScores, ScoreEvidence, ScoreGatherer, evidence
from heedful.recording.heads import heads_with
from heedful.views.explorer import tiles
from heedful.views.explorer.jobs import Job, bands

SMALL = 32  # maximum side of a thumbnail, in pixels
FEW = 1 << 23  # maximum number of weights of a call that is scored at once
SAMPLED = 1 << 25  # maximum number of weights in a sample, unless rows are very long
RUNS, RUN = 8, 16  # number and length of the runs of queries in a sample for scores
BAND = 1 << 20  # weights per step


class Overview(Job):
    """Thumbnails and scores of the heads of a call: sampled, then exact.

    Args:
        call: the call, with token ids only if they are reliable.
        chance_scores: the cache of chance scores, shared by the calls of a text.
    """

    def __init__(self, call: Call, chance_scores: ChanceScores) -> None:
        self.call, self._chance_scores = call, chance_scores
        self._has_scores = [False] * call.shape[0]
        self._numbers: dict[str, ScoreEvidence] = {}
        self._maps: Tensor | None = None
        if call.proof == "refuted":  # there is nothing to compute
            self.fraction_done, self.is_complete = 1.0, True
        elif math.prod(call.shape) <= FEW:
            self._maps = call.heatmap(SMALL, reduce="max")
            self._numbers, self._has_scores = evidence(call, chance_scores), [True] * call.shape[0]
            self.fraction_done, self.is_complete = 1.0, True

    def maps(self) -> Tensor:
        """Return the thumbnails, (H, r, c), of the maximum per pixel; sampled until complete."""
        if self._maps is None:
            self._maps = self._sampled()
        return self._maps

    def heads(self) -> tuple[list[str], dict[str, Tensor]]:
        """Return the kind of each head and its numbers; "" and NaN for heads not yet scored.

        The numbers are the scores and means by name. For each score, "chance …" is its expectation
        if each row is shuffled, and "queries …" is the number of queries that it averages over.
        """
        kinds, numbers = head_data(self.call, self._numbers)
        pairs = zip(kinds, self._has_scores, strict=True)
        return [kind if scored or self.is_complete else "" for kind, scored in pairs], numbers

    def steps(self) -> Iterator[None]:
        """Score every head on some runs of queries, then each head on all queries."""
        H, N, M = self.call.shape
        firsts = evenly_spaced(max(0, N - RUN) + 1, RUNS).tolist()
        samples = [range(first, min(first + RUN, N)) for first in firsts]
        for i in range(H):
            for _ in self._score(i, samples):
                yield
        maps = self.maps()
        for i in range(H):
            thumbnails = Thumbnails(self.call)
            runs = [run for _, run in bands(range(N), M, BAND)]
            for share in self._score(i, runs, thumbnails):
                self.fraction_done = (i + share) / H
                yield
            maps[i] = thumbnails.result()[0]

    def _score(self, i: int, runs: list[range], *others: Statistic) -> Iterator[float]:
        """Score a head on runs of queries; after each run, yield the completed share."""
        gatherer = ScoreGatherer(self.call, self._chance_scores, slice(i, i + 1))
        for number, run in enumerate(runs):
            gatherer.add_rows(run, *others)
            yield (number + 1) / len(runs)
        H = len(self._has_scores)
        self._has_scores[i] = True
        for name, score in gatherer.evidence().items():
            blank = torch.full((H,), torch.nan, dtype=torch.float32, device="cpu")
            chance = None if score.chance is None else blank.clone()
            empty = ScoreEvidence(blank, chance, torch.zeros(H, dtype=torch.long, device="cpu"))
            stored = self._numbers.setdefault(name, empty)
            for numbers, value in zip(stored, score, strict=True):
                if numbers is not None and value is not None:
                    numbers[i] = value[0]

    def _sampled(self) -> Tensor:
        """Compute thumbnails from a few queries per row of pixels."""
        H, N, M = self.call.shape
        down, across = (max(1, -(-size // SMALL)) for size in (N, M))
        per_row = max(1, min(4, down, SAMPLED // (H * M * SMALL)))
        starts = torch.arange(0, N, down, device="cpu")
        ends = (starts + down).clamp(max=N) - 1
        halves = 2 * torch.arange(per_row, device="cpu") + 1  # the middles of `per_row` equal parts
        queries = (starts[:, None] + (ends - starts)[:, None] * halves // (2 * per_row)).flatten()
        maps = []
        for head in self.call.heads:
            part = tiles.pooled_keys(self.call.weights(head, queries), across, "max")
            maps.append(part.unflatten(0, (-1, per_row)).amax(1))
        return torch.stack(maps)


def head_data(
    call: Call, evidence: dict[str, ScoreEvidence]
) -> tuple[list[str], dict[str, Tensor]]:
    """Return the kind of each head and its numbers, in the form of `Overview.heads`."""
    heads = heads_with(call, 0, evidence)
    numbers = {name: _array(getattr(head, name) for head in heads) for name in MEANS}
    for name in SCORES:
        numbers[name] = _array(head.scores[name] for head in heads)
        numbers[f"chance {name}"] = _array(head.chance[name] for head in heads)
        numbers[f"queries {name}"] = _array(head.queries[name] for head in heads)
    return [head.kind for head in heads], numbers


class Thumbnails(Statistic):
    """Thumbnails of heads as a statistic over blocks of weights: (H, r, c), the maximum per pixel.

    Args:
        call: the call.
        side: the maximum side of a thumbnail, in pixels. A pixel covers a cell of weights.
    """

    def __init__(self, call: Call, side: int = SMALL) -> None:
        _, N, M = call.shape
        self._cell = max(1, -(-N // side)), max(1, -(-M // side))
        self._maps: Tensor | None = None

    def update(self, block: Block) -> None:
        """Update the cells that a block of weights overlaps."""
        (down, across), (H, N, M) = self._cell, block.shape
        if self._maps is None:
            self._maps = block.weights.new_zeros(H, -(-N // down), -(-M // across))
        if not block.weights.numel():
            return
        wide = _pooled(block.weights, block.keys.start, across)
        cells = _pooled(wide.mT, block.queries.start, down).mT
        row, column = block.queries.start // down, block.keys.start // across
        rows, columns = cells.shape[1:]
        part = self._maps[block.heads, row : row + rows, column : column + columns]
        part.copy_(torch.maximum(part, cells))

    def result(self) -> Tensor:
        """Return the thumbnails, (H, r, c), with 0 in masked cells."""
        return self.required(self._maps).clamp(max=1).cpu()

    def fully_masked(self, call: Call) -> Tensor:
        """Return which cells are fully masked, (H or 1, r, c)."""
        return masked_cells(call.checked_inputs(), self._cell)


def _pooled(part: Tensor, start: int, cell: int) -> Tensor:
    """Return the maximum of each cell along the last axis, which begins at index `start`."""
    return tiles.pooled_keys(torch.nn.functional.pad(part, (start % cell, 0)), cell, "max")


def _array(numbers: Iterable[float | None]) -> Tensor:
    return torch.tensor(
        [math.nan if number is None else number for number in numbers],
        dtype=torch.float32,
        device="cpu",
    )
