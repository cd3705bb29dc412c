"""Computes the scores of heads, what chance gives in their place, and on how many queries they rest.

Chance is the expectation of a score where each row shuffles its weights among the keys that the
mask allows. Of a score that adds up weights it is the score of a map of equal weights under the same
mask, which is computed for one head, once for all layers that share the mask.
"""  # noqa: E501

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.head_kinds import MEANS, REACH, SCORES
from heedful.ops import statistics as of
from heedful.ops.exact_sums import Total
from heedful.ops.indexing import ALL, as_slice
from heedful.ops.inputs import AttentionInputs
from heedful.ops.statistics import RowStatistic, Sink, Statistic
from heedful.recording.call import Call
from heedful.recording.progress import Progress, Tell, within

BY_TOKENS = ("induction", "duplicate")  # scores that ask which token a key is
STATISTICS: dict[str, Callable[[Call], RowStatistic]] = {
    "previous": lambda call: call.placed(of.Diagonal(1)),
    "sink": lambda call: Sink(crosses=call.crosses),
    "self": lambda call: call.placed(of.Diagonal(0)),
    "local": lambda call: call.placed(of.Nearby(REACH)),
    "broad": lambda call: of.NormalizedEntropy(),
    "induction": lambda call: call.placed(of.Matching(ids_of(call), 1, call.unknown)),
    "duplicate": lambda call: call.placed(of.Matching(ids_of(call), 0, call.unknown)),
    "entropy": lambda call: of.Entropy(),
    "distance": lambda call: call.placed(of.Distance()),
}


class Evidence(NamedTuple):
    """A number of each head, and what it rests on.

    mean: (H,), over the queries that have a number; NaN where none has.
    chance: (H,), what the same rows give with their keys shuffled; None where that says nothing.
    queries: (H,), how many queries have a number.
    """

    mean: Tensor
    chance: Tensor | None
    queries: Tensor


class ScoreTotals(NamedTuple):
    """What means and chances are the quotients of: exact sums over queries, of one text or of many.

    names: of the scores, entropy and distance. values: (scores, H). by_chance: the names of those
    that have a chance. chance: (those, H).
    """

    names: tuple[str, ...]
    values: Total
    by_chance: tuple[str, ...]
    chance: Total

    def plus(self, other: ScoreTotals) -> ScoreTotals:
        """Both together; of the same scores."""
        return self._replace(
            values=self.values.plus(other.values), chance=self.chance.plus(other.chance)
        )

    def evidence(self) -> dict[str, Evidence]:
        """The means, in single precision as the rows are, over all queries that were added up."""
        means, chance = self.values.mean().float(), self.chance.mean().float()
        chances = dict(zip(self.by_chance, chance, strict=True))
        return {
            name: Evidence(mean, chances.get(name), counts)
            for name, mean, counts in zip(self.names, means, self.values.counts, strict=True)
        }


class Even:
    """Statistics of maps of equal scores, kept for the calls that share mask and tokens."""

    def __init__(self) -> None:
        self._known: list[_EvenRows] = []

    def rows(self, call: Call, names: list[str], run: range) -> dict[str, Tensor]:
        """Some scores of a call, were its weights even: (1 or H, N) each, at least of a run."""
        kept, rows = self._kept(call, names), as_slice(run)
        if not bool(kept.done[rows].all()) or not kept.is_begun:
            of.gather(_even(call.causes), *kept.statistics, within=run)
            kept.done[rows] = kept.is_begun = True
        results = [statistic.result() for statistic in kept.statistics]
        return dict(zip(names, results, strict=True))

    def _kept(self, call: Call, names: list[str]) -> _EvenRows:
        key = (call.causes.mask, call.shape[1:], call.unknown, call.crosses, names)
        for kept in self._known:
            if kept.key == key and (kept.ids is call.ids or _are_equal(kept.ids, call.ids)):
                return kept
        done = torch.zeros(call.shape[1], dtype=torch.bool, device="cpu")
        even = _EvenRows(key, call.ids, [STATISTICS[name](call) for name in names], done)
        self._known = [*self._known[-3:], even]  # layers have few masks in turn
        return even


@dataclass
class _EvenRows:
    """Statistics of one even map, and whether each row, (N,), and any run of them, is gathered."""

    key: tuple
    ids: Tensor | None
    statistics: list[RowStatistic]
    done: Tensor
    is_begun: bool = False


class Gathering:
    """What the scores of a call's heads rest on, gathered run of rows by run of rows.

    Without tokens, induction and duplicate are left out. A score is NaN where no query of the text
    can tell, as where no token comes twice, or where queries and keys have no places in common.

    Args:
        call: whose heads.
        even: the same for the calls of a recording; default one of its own.
        heads: of which heads, by their places in the call; default all.
    """

    def __init__(self, call: Call, even: Even | None = None, heads: slice = ALL) -> None:
        self.call, self.heads, self._even = call, heads, even or Even()
        is_known = call.ids is not None
        names = [name for name in (*SCORES, *MEANS) if is_known or name not in BY_TOKENS]
        self._statistics = {name: STATISTICS[name](call) for name in names}
        self._linear = [name for name in names if name in SCORES and name != "broad"]
        self._learned = of.LearnedSink()

    def take(self, run: range, *others: Statistic) -> None:
        """Take in a run of rows; `others` are told of its blocks too."""
        statistics = (*self._statistics.values(), self._learned, *others)
        self.call.gathered(*statistics, heads=self.heads, within=run)
        self._even.rows(self.call, self._linear, run)

    def totals(self) -> ScoreTotals:
        """Each score of each head, and entropy and distance, added up over the rows taken in."""
        evenly = self._even.rows(self.call, self._linear, range(0))
        taken = 1 - self._learned.result()  # NaN where a row was not taken in
        values = {name: statistic.result() for name, statistic in self._statistics.items()}
        chances = {}
        for name, rows in evenly.items():
            shares = (rows[self.heads] if len(rows) > 1 else rows) * taken
            chances[name] = shares.masked_fill(values[name].isnan(), torch.nan)
        of_values = Total.of(torch.stack([*values.values()]))
        of_chance = Total.of(torch.stack([*chances.values()]))
        return ScoreTotals(tuple(values), of_values, tuple(chances), of_chance)

    def found(self) -> dict[str, Evidence]:
        """Their means over the rows taken in."""
        return self.totals().evidence()


def totals(
    call: Call, even: Even | None = None, progress: Tell = lambda share: None
) -> ScoreTotals:
    """Each score of each head, and entropy and distance, in one pass over every row of the map."""
    gathering = Gathering(call, even)
    gathering.take(range(call.shape[1]), Progress(progress))
    return gathering.totals()


def over_parts(
    call: Call, even: Even | None = None, progress: Tell = lambda share: None
) -> ScoreTotals:
    """The same over all parts of the call's text, such as windows."""
    parts = call.parts
    each = (totals(part, even, within(progress, i, len(parts))) for i, part in enumerate(parts))
    return functools.reduce(ScoreTotals.plus, each)


def evidence(
    call: Call, even: Even | None = None, progress: Tell = lambda share: None
) -> dict[str, Evidence]:
    """The means of `totals`."""
    return totals(call, even, progress).evidence()


def ids_of(call: Call) -> Tensor:
    """The tokens of the keys; raises a RunError where they are not known."""
    if call.ids is None:
        raise RunError(
            f"no tokens of {call.name}",
            expected="a model that was given input_ids, and attends to them",
        )
    return call.ids


def _even(causes: AttentionInputs) -> AttentionInputs:
    """The causes of a map that spreads each row over all that the mask allows."""
    (_, N, M), mask, heads = causes.shape, causes.mask, 1
    if mask is not None and N:  # a table may have rows of its own for each head
        row = mask.crop(causes.shape, slice(0, 1))
        heads = len(row) if row.ndim == 3 else 1
    kind = torch.promote_types(causes.query.dtype, torch.float32)
    nothing = causes.query.new_zeros((), dtype=kind)
    return AttentionInputs(nothing.expand(heads, N, 1), nothing.expand(1, M, 1), 1.0, mask)


def _are_equal(ids: Tensor | None, others: Tensor | None) -> bool:
    return ids is not None and others is not None and torch.equal(ids, others)
