"""Background jobs on parts of a call: log-sum-exps, largest weights and segment shares.

The share of two segments is the total weight of a query of the first on the keys of the second,
averaged over these queries (`recording.segments`). A long call has no shares before its job ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.ops.indexing import as_slice
from heedful.ops.segments import SegmentShares
from heedful.recording import Call
from heedful.recording.segments import query_masks, with_rest
from heedful.views.explorer.jobs import Job, bands
from heedful.views.explorer.tiles import visible_keys

BAND = 1 << 22  # weights per step
SAMPLED = 1 << 23  # maximum number of weights that are searched at once
FEW = 1 << 23  # maximum number of weights of a call whose shares are computed at once
MAX_PROGRESS = 0.999  # the largest progress before the job is complete

Cell = tuple[float, int, int]  # a weight, its query and its key
Segments = list[list[range]]  # the ranges of each segment


class Sums(Job):
    """The log-sum-exps of some rows of a head, which make single weights fast."""

    def __init__(self, call: Call, head: int, queries: range) -> None:
        self.call, self.head, self.queries = call, head, queries

    def steps(self) -> Iterator[None]:
        """Compute the log-sum-exps of one run of rows after the other; the call caches them."""
        for share, run in bands(self.queries, self.call.shape[2], BAND):
            self.call.log_sum_exp(self.head, queries=as_slice(run))
            self.fraction_done = share
            yield


class Strongest(Job):
    """The largest weights of a region, descending; until complete, from a sample of queries."""

    def __init__(self, call: Call, head: int, queries: range, keys: range, count: int) -> None:
        self.call, self.head, self.queries, self.keys = call, head, queries, keys
        self.count = count
        self._best: list[Cell] = []
        self._sampled: list[Cell] | None = None
        if len(queries) * len(keys) <= SAMPLED and call.has_row_sums(head, queries):
            self.run_steps()

    @property
    def cells(self) -> list[Cell]:
        """The largest weights of the region, or of a sample until the job has completed."""
        if self.is_complete:
            return self._best
        if self._sampled is None:
            rows = max(1, SAMPLED // max(1, self.call.shape[2]))
            step = max(1, -(-len(self.queries) // rows))
            self._sampled = self._largest_of(list(self.queries[::step]), self.keys)
        return self._sampled

    def steps(self) -> Iterator[None]:
        """Search one run of rows after the other."""
        has_sums = self.call.has_row_sums(self.head, self.queries)
        width = len(self.keys) if has_sums else self.call.shape[2]  # weights computed per row
        for share, run in bands(self.queries, width, BAND):
            keys = visible_keys(self.call, run, self.keys, 1)
            self._best = _largest(self._best + self._largest_of(list(run), keys), self.count)
            self.fraction_done = share
            yield

    def _largest_of(self, queries: list[int], keys: range) -> list[Cell]:
        cells: list[Cell] = []
        size = max(1, BAND // max(1, len(keys)))
        for first in range(0, len(queries), size):
            rows = queries[first : first + size]
            part = self.call.weights(self.head, rows, as_slice(keys)).flatten().nan_to_num(nan=0)
            top = part.topk(min(self.count, len(part)))
            cells += [
                (weight, rows[i // len(keys)], keys[i % len(keys)])
                for weight, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
                if weight > 0
            ]
        return _largest(cells, self.count)


def _largest(cells: list[Cell], count: int) -> list[Cell]:
    """Sort in descending order, ties by query, then by key, and keep the first `count`."""
    return sorted(cells, key=lambda cell: (-cell[0], cell[1], cell[2]))[:count]


class Shares(Job):
    """The segment shares of the heads of a call.

    `arrays` is empty until the job is complete. It then has share and chance (H, A, B), learned and
    queries (H, A), as in `ops.segments`, and keys (B,), the number of keys of each segment.

    Args:
        call: the call; a refuted call raises an error.
        queries, keys: boolean segment masks, (A, N) and (B, M).
    """

    def __init__(self, call: Call, queries: Tensor, keys: Tensor) -> None:
        self.call, self.queries, self.keys = call, queries, keys
        self.arrays: dict[str, Tensor] = {}
        call.checked_inputs()
        H, N, M = call.shape
        if H * N * M <= FEW:
            self.run_steps()

    def steps(self) -> Iterator[None]:
        """Gather the shares head by head, in each head one run of rows after the other."""
        H, N, M = self.call.shape
        results = []
        for i in range(H):
            statistic = SegmentShares(self.queries, self.keys)
            for share, run in [*bands(range(N), M, BAND)] or [(1.0, range(N))]:
                self.call.gather(statistic, heads=slice(i, i + 1), within=run)
                self.fraction_done = min(MAX_PROGRESS, (i + share) / H)
                yield
            results.append(statistic.result())
        for name in ("share", "chance", "learned", "queries"):
            self.arrays[name] = torch.cat([getattr(result, name) for result in results])
        self.arrays["keys"] = self.keys.sum(dim=-1)
        del self.queries, self.keys  # they may be large, and the job stays cached


def shares(call: Call, keys: Segments, queries: Segments | None = None) -> Shares:
    """Create the job for the segment shares of a call.

    Args:
        call: the call.
        keys: the ranges of each segment of the keys.
        queries: those of the queries; default: a query is in the segments of its position's key.
    """
    _, N, M = call.shape
    key_segments = _masks(keys, M)
    query_segments = query_masks(call, key_segments) if queries is None else _masks(queries, N)
    stacked = [torch.stack([*with_rest(masks, size).values()])
               if size else torch.zeros(len(masks), 0, dtype=torch.bool, device="cpu")
               for masks, size in ((query_segments, N), (key_segments, M))]  # fmt: skip
    return Shares(call, *stacked)


def _masks(segments: Segments, size: int) -> dict[str, Tensor]:
    masks = {}
    for number, runs in enumerate(segments):
        mask = masks[str(number)] = torch.zeros(size, dtype=torch.bool, device="cpu")
        for run in runs:
            mask[run.start : run.stop] = True
    return masks
