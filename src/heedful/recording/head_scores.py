"""The scores of heads, each with its chance and the number of queries in its mean.

The chance of a score is its expectation if the weights of each row are shuffled among the unmasked
keys. For a score that sums weights, this is the score of uniform attention under the same mask.
Uniform attention is computed once for all heads and layers that share a mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.head_kinds import MEANS, REACH, SCORES
from heedful.ops import statistics
from heedful.ops.exact_sums import Total
from heedful.ops.indexing import ALL, as_slice
from heedful.ops.inputs import AttentionInputs
from heedful.ops.statistics import RowStatistic, Sink, Statistic
from heedful.recording.call import Call
from heedful.recording.progress import OnProgress, Progress, sub_progress

BY_TOKENS = ("induction", "duplicate")  # scores that depend on the token ids of the keys
STATISTICS: dict[str, Callable[[Call], RowStatistic]] = {
    "previous": lambda call: call.positional(statistics.Diagonal(1)),
    "sink": lambda call: Sink(crosses=call.is_cross),
    "self": lambda call: call.positional(statistics.Diagonal(0)),
    "local": lambda call: call.positional(statistics.Nearby(REACH)),
    "broad": lambda call: statistics.NormalizedEntropy(),
    "induction": lambda call: call.positional(statistics.Matching(ids_of(call), 1, call.unknown)),
    "duplicate": lambda call: call.positional(statistics.Matching(ids_of(call), 0, call.unknown)),
    "entropy": lambda call: statistics.Entropy(),
    "distance": lambda call: call.positional(statistics.Distance()),
}


class ScoreEvidence(NamedTuple):
    """One score of all H heads, its chance, and the number of queries in its mean.

    mean: (H,), over the queries for which the score is defined; NaN if there are none.
    chance: (H,), the expectation with shuffled keys; None for broad, entropy and distance.
    queries: (H,), the number of queries for which the score is defined.
    """

    mean: Tensor
    chance: Tensor | None
    queries: Tensor


class ScoreTotals(NamedTuple):
    """Exact sums of scores and chances over the queries of one or many texts.

    names: those of the scores, and "entropy" and "distance". values: the sums, (names, H).
    with_chance: the names of the scores with a chance. chance: sums of chances, (with_chance, H).
    """

    names: tuple[str, ...]
    values: Total
    with_chance: tuple[str, ...]
    chance: Total

    def plus(self, other: ScoreTotals) -> ScoreTotals:
        """Return the sum of these totals and those of the same scores on other queries."""
        return self._replace(
            values=self.values.plus(other.values), chance=self.chance.plus(other.chance)
        )

    def evidence(self) -> dict[str, ScoreEvidence]:
        """Return the means over all queries, rounded to float32, the usual precision of rows."""
        means, chance = self.values.mean().float(), self.chance.mean().float()
        chances = dict(zip(self.with_chance, chance, strict=True))
        return {
            name: ScoreEvidence(mean, chances.get(name), counts)
            for name, mean, counts in zip(self.names, means, self.values.counts, strict=True)
        }


class ChanceScores:
    """A cache of the scores of uniform attention, for calls that share mask and tokens."""

    def __init__(self) -> None:
        self._entries: list[_UniformRows] = []

    def rows(self, call: Call, names: list[str], run: range) -> dict[str, Tensor]:
        """Return scores of uniform attention by name, (1 or H, N) each; rows in `run` are valid."""
        entry, rows = self._entry(call, names), as_slice(run)
        if not bool(entry.completed[rows].all()) or not entry.has_run:
            statistics.gather(_uniform(call.causes), *entry.statistics, within=run)
            entry.completed[rows] = entry.has_run = True
        results = [statistic.result() for statistic in entry.statistics]
        return dict(zip(names, results, strict=True))

    def _entry(self, call: Call, names: list[str]) -> _UniformRows:
        key = (call.causes.mask, call.shape[1:], call.unknown, call.is_cross, names)
        for entry in self._entries:
            if entry.key == key and (entry.ids is call.ids or _are_equal(entry.ids, call.ids)):
                return entry
        completed = torch.zeros(call.shape[1], dtype=torch.bool, device="cpu")
        entry = _UniformRows(key, call.ids, [STATISTICS[name](call) for name in names], completed)
        self._entries = [*self._entries[-3:], entry]  # layers alternate between few masks
        return entry


@dataclass
class _UniformRows:
    """Statistics of one uniform map, and which of its rows (N,) are completed."""

    key: tuple
    ids: Tensor | None
    statistics: list[RowStatistic]
    completed: Tensor
    has_run: bool = False


class ScoreGatherer:
    """Computes the scores of a call's heads from runs of adjacent rows.

    Without token ids, induction and duplicate are omitted. A score is NaN if no query has it, such
    as duplicate if no token occurs twice, and previous in cross-attention (without positions).

    Args:
        call: the call to score.
        chance: a cache that the calls of a recording share; default a new one.
        heads: the heads, by their index in the call; default all.
    """

    def __init__(self, call: Call, chance: ChanceScores | None = None, heads: slice = ALL) -> None:
        self.call, self.heads = call, heads
        self._chance = chance or ChanceScores()
        has_ids = call.ids is not None
        names = [name for name in (*SCORES, *MEANS) if has_ids or name not in BY_TOKENS]
        self._statistics = {name: STATISTICS[name](call) for name in names}
        self._linear = [name for name in names if name in SCORES and name != "broad"]
        self._learned = statistics.LearnedSink()

    def add_rows(self, run: range, *others: Statistic) -> None:
        """Add a run of rows; `others` are more statistics to gather in the same pass over rows."""
        gathered = (*self._statistics.values(), self._learned, *others)
        self.call.gather(*gathered, heads=self.heads, within=run)
        self._chance.rows(self.call, self._linear, run)

    def totals(self) -> ScoreTotals:
        """Return the scores, entropy and distance of each head, summed over the added rows."""
        uniform = self._chance.rows(self.call, self._linear, range(0))
        row_totals = 1 - self._learned.result()  # NaN in rows that were not added
        values = {name: statistic.result() for name, statistic in self._statistics.items()}
        chances = {}
        for name, rows in uniform.items():
            shares = (rows[self.heads] if len(rows) > 1 else rows) * row_totals
            chances[name] = shares.masked_fill(values[name].isnan(), torch.nan)
        score_total = Total.of(torch.stack([*values.values()]))
        chance_total = Total.of(torch.stack([*chances.values()]))
        return ScoreTotals(tuple(values), score_total, tuple(chances), chance_total)

    def evidence(self) -> dict[str, ScoreEvidence]:
        """Return the means over the added rows, by the name of the score."""
        return self.totals().evidence()


def totals(
    call: Call, chance: ChanceScores | None = None, progress: OnProgress = lambda share: None
) -> ScoreTotals:
    """Return the sums of each score, entropy and distance over all queries of a call."""
    gatherer = ScoreGatherer(call, chance)
    gatherer.add_rows(range(call.shape[1]), Progress(progress))
    return gatherer.totals()


def over_parts(
    call: Call, chance: ChanceScores | None = None, progress: OnProgress = lambda share: None
) -> ScoreTotals:
    """Return the sum of the `totals` of all parts of the call's text, such as windows."""
    count = len(call.parts)
    steps = ((part, sub_progress(progress, i, count)) for i, part in enumerate(call.parts))
    return functools.reduce(ScoreTotals.plus, (totals(part, chance, step) for part, step in steps))


def evidence(
    call: Call, chance: ChanceScores | None = None, progress: OnProgress = lambda share: None
) -> dict[str, ScoreEvidence]:
    """Return the means of the `totals` of a call, by the name of the score."""
    return totals(call, chance, progress).evidence()


def ids_of(call: Call) -> Tensor:
    """Return the token ids of the keys; raise a RunError if they are unknown."""
    if call.ids is None:
        raise RunError(
            f"no token ids of {call.name}",
            expected="attention to the tokens that the model receives as its argument input_ids",
        )
    return call.ids


def _uniform(inputs: AttentionInputs) -> AttentionInputs:
    """Return attention inputs with the same mask, but equal scores: uniform attention."""
    (_, N, M), mask, heads = inputs.shape, inputs.mask, 1
    if mask is not None and N:  # a mask may differ from head to head
        row = mask.crop(inputs.shape, slice(0, 1))
        heads = len(row) if row.ndim == 3 else 1
    dtype = torch.promote_types(inputs.query.dtype, torch.float32)
    zero = inputs.query.new_zeros((), dtype=dtype)
    return AttentionInputs(zero.expand(heads, N, 1), zero.expand(1, M, 1), 1.0, mask)


def _are_equal(ids: Tensor | None, others: Tensor | None) -> bool:
    return ids is not None and others is not None and torch.equal(ids, others)
