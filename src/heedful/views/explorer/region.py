"""Work on a region of one head that may take long: the sums of its rows, its strongest cells."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.ops.score_tables import as_slice
from heedful.recording import Call
from heedful.views.explorer.background import Job, bands
from heedful.views.explorer.tiles import seen_by

BAND = 1 << 23  # weights that are computed in one step
SAMPLED = 1 << 23  # weights among which the strongest are looked for at once

Cell = tuple[float, int, int]  # a weight, its query and its key


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
