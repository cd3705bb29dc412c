"""Who reads what: how much each head of a call reads of each segment that a person marked.

Of a short call at once; else head after head while nobody asks, and all of it when it is done, for
a share is a mean over whole segments. The numbers are those of `recording.segments`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.ops.segments import SegmentShares
from heedful.recording import Call
from heedful.recording.segments import standing, with_rest
from heedful.views.explorer.asked import Asked
from heedful.views.explorer.background import Background, Job, bands
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import packed

FEW = 1 << 23  # weights whose shares are computed at once
BAND = 1 << 22  # weights that are computed in one step
NEARLY = 0.999  # of a job that has one more thing to do
KEPT = 4000  # answers that are kept, of some kilobytes each

Runs = list[list[range]]  # of each segment


class Shares(Job):
    """The shares of one call.

    Args:
        call: whose heads.
        queries, keys: boolean (A, N) and (B, M).
    """

    def __init__(self, call: Call, queries: Tensor, keys: Tensor) -> None:
        self.call, self.queries, self.keys = call, queries, keys
        self._of: list[SegmentShares] = []
        call.checked()
        H, N, M = call.shape
        if H * N * M <= FEW:
            self.build()

    def steps(self) -> Iterator[None]:
        """Run of rows after run of rows, of one head after the other."""
        H, N, M = self.call.shape
        for i in range(H):
            own = SegmentShares(self.queries, self.keys)
            for share, run in [*bands(range(N), M, BAND)] or [(1.0, range(N))]:
                self.call.gathered(own, heads=slice(i, i + 1), within=run)
                self.done = min(NEARLY, (i + share) / H)
                yield
            self._of.append(own)

    def arrays(self) -> dict[str, Tensor]:
        """share, chance (H, A, B), learned and queries (H, A), keys (B,); once it is whole."""
        found = [one.result() for one in self._of]
        by_name = {name: torch.cat([getattr(one, name) for one in found])
                   for name in ("share", "chance", "learned", "queries")}  # fmt: skip
        return {**by_name, "keys": self.keys.sum(dim=-1)}


class SharesOf:
    """Answers about segments of texts; what was computed once is kept."""

    def __init__(self, texts: Texts, background: Background) -> None:
        self._texts, self._background = texts, background
        self._jobs: dict[tuple, Shares] = {}  # that are not whole yet
        self._answers: dict[tuple, bytes] = {}

    def ask(self, asked: Asked) -> bytes:
        """The shares of a call, or how far they are.

        `keys` are the marks, as 0-40,50-60;60-80; `queries` those of another text. What is in no
        segment comes last, if there is any.
        """
        where = asked.where()
        call = self._texts.call(*where)
        _, N, M = call.shape
        keys = asked.marks("keys", M)
        queries = asked.marks("queries", N) if call.crosses else None
        key = (where, repr(keys), repr(queries))
        if key not in self._answers:
            if key not in self._jobs:
                self._jobs[key] = shares(call, keys, queries)
            job = self._jobs[key]
            self._background.show(job)
            if not job.is_whole:
                return packed({"word": "not computed yet", **job.said})
            about = {"word": "exact", "sinks": call.causes.sinks is not None}
            self._answers[key] = packed(about, **job.arrays())
            del self._jobs[key]
            if len(self._answers) > KEPT:
                del self._answers[next(iter(self._answers))]
        return self._answers[key]


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
