"""Work on parts of a call that may take long: sums of rows, strongest cells, shares of segments.

A share is how much each head reads of a segment that a person marked, as `recording.segments` has
it: of a short call it is there at once; else when all of it is done, as it is a mean over whole
segments.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.ops.indexing import as_slice
from heedful.ops.segments import SegmentShares
from heedful.recording import Call
from heedful.recording.segments import standing, with_rest
from heedful.views.explorer.jobs import Job, bands
from heedful.views.explorer.tiles import seen_by

BAND = 1 << 22  # weights that are computed in one step
SAMPLED = 1 << 23  # weights among which the strongest are looked for at once
FEW = 1 << 23  # weights whose shares are computed at once
NEARLY = 0.999  # of a job that has one more thing to do

Cell = tuple[float, int, int]  # a weight, its query and its key
Runs = list[list[range]]  # of each segment


class Sums(Job):
    """The log-sum-exps of some rows of a head, without which no cell of theirs is quick."""

    def __init__(self, call: Call, head: int, queries: range) -> None:
        self.call, self.head, self.queries = call, head, queries

    def steps(self) -> Iterator[None]:
        """Run of rows after run of rows; those that are known cost nothing."""
        for done, run in bands(self.queries, self.call.shape[2], BAND):
            self.call.log_sum_exp(self.head, queries=as_slice(run))
            self.done = done
            yield


class Strongest(Job):
    """The largest weights of a region, descending: of some of its queries, then of all."""

    def __init__(self, call: Call, head: int, queries: range, keys: range, count: int) -> None:
        self.call, self.head, self.queries, self.keys = call, head, queries, keys
        self.count = count
        self._best: list[Cell] = []
        self._sampled: list[Cell] | None = None
        if len(queries) * len(keys) <= SAMPLED and call.knows(head, queries):
            self.build()

    @property
    def cells(self) -> list[Cell]:
        """Those that are known by now."""
        if self.is_whole:
            return self._best
        if self._sampled is None:
            rows = max(1, SAMPLED // max(1, self.call.shape[2]))
            step = max(1, -(-len(self.queries) // rows))
            self._sampled = self._of(list(self.queries[::step]), self.keys)
        return self._sampled

    def steps(self) -> Iterator[None]:
        """Run of rows after run of rows."""
        for done, run in bands(self.queries, self._width, BAND):
            keys = seen_by(self.call, run, self.keys, 1)
            self._best = _largest(self._best + self._of(list(run), keys), self.count)
            self.done = done
            yield

    @property
    def _width(self) -> int:
        """How many weights of a row are computed."""
        known = self.call.knows(self.head, self.queries)
        return len(self.keys) if known else self.call.shape[2]

    def _of(self, queries: list[int], keys: range) -> list[Cell]:
        found: list[Cell] = []
        size = max(1, BAND // max(1, len(keys)))
        for first in range(0, len(queries), size):
            some = queries[first : first + size]
            part = self.call.weights(self.head, some, as_slice(keys)).flatten()
            top = part.topk(min(self.count, len(part)))
            found += [
                (weight, some[at // len(keys)], keys[at % len(keys)])
                for weight, at in zip(top.values.tolist(), top.indices.tolist(), strict=True)
                if weight > 0
            ]
        return _largest(found, self.count)


def _largest(cells: list[Cell], count: int) -> list[Cell]:
    """Descending; of equal ones the first query, then the first key."""
    return sorted(cells, key=lambda cell: (-cell[0], cell[1], cell[2]))[:count]


class Shares(Job):
    """The shares of one call.

    arrays: share, chance (H, A, B), learned and queries (H, A), keys (B,); once it is whole.

    Args:
        call: whose heads.
        queries, keys: boolean (A, N) and (B, M).
    """

    def __init__(self, call: Call, queries: Tensor, keys: Tensor) -> None:
        self.call, self.queries, self.keys = call, queries, keys
        self.arrays: dict[str, Tensor] = {}
        call.checked()
        H, N, M = call.shape
        if H * N * M <= FEW:
            self.build()

    def steps(self) -> Iterator[None]:
        """Run of rows after run of rows, of one head after the other."""
        H, N, M = self.call.shape
        of = []
        for i in range(H):
            own = SegmentShares(self.queries, self.keys)
            for share, run in [*bands(range(N), M, BAND)] or [(1.0, range(N))]:
                self.call.gathered(own, heads=slice(i, i + 1), within=run)
                self.done = min(NEARLY, (i + share) / H)
                yield
            of.append(own.result())
        for name in ("share", "chance", "learned", "queries"):
            self.arrays[name] = torch.cat([getattr(one, name) for one in of])
        self.arrays["keys"] = self.keys.sum(dim=-1)
        del self.queries, self.keys  # the answer is kept, these need not be


def shares(call: Call, keys: Runs, queries: Runs | None = None) -> Shares:
    """The work of a call; of one text the queries are in the segments of where they stand.

    Args:
        call: whose heads.
        keys, queries: the runs of each segment.
    """
    _, N, M = call.shape
    of_keys = _marks(keys, M)
    of_queries = standing(call, of_keys) if queries is None else _marks(queries, N)
    stacked = [torch.stack([*with_rest(marks, size).values()])
               if size else torch.zeros(len(marks), 0, dtype=torch.bool, device="cpu")
               for marks, size in ((of_queries, N), (of_keys, M))]  # fmt: skip
    return Shares(call, *stacked)


def _marks(segments: Runs, size: int) -> dict[str, Tensor]:
    found = {}
    for number, runs in enumerate(segments):
        own = found[str(number)] = torch.zeros(size, dtype=torch.bool, device="cpu")
        for run in runs:
            own[run.start : run.stop] = True
    return found
