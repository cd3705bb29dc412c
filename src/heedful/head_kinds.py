"""What the scores of a head are called, and when a head is called by one: words and a rule.

Nothing here computes with tensors, so that a command's help can say it at once; the statistics are
in `heedful.recording.head_scores`.

**The rule.** A score is a mean over Q queries that have a choice. Chance is the mean that the same
rows would have with their keys shuffled among those that the mask allows. A head has a kind where

1. the score is `LEAST` or more (`LEAST_BROAD` for broad),
2. it rests on `FEWEST` queries or more, and
3. shuffled rows would reach the score less than once in `ONCE_IN` heads.

For the third, Q · KL(score ‖ chance) is to be log(`ONCE_IN`) or more, where KL(s ‖ c) is
s · log(s / c) + (1 − s) · log((1 − s) / (1 − c)): no mean of Q independent shares between 0 and 1
exceeds its expectation so far more often than that (Hoeffding 1963, *Probability inequalities for
sums of bounded random variables*, theorem 1). It is a bound, so that shuffled rows reach it less
often still. Shuffling leaves the entropy of a row as it is: `broad` has no chance, and only 1 and 2
hold for it.

The four numbers are choices. With them, a head that always looks at the token before is called so
from seven tokens on, and a hundred and forty-four heads with shuffled keys have no kind.

>>> kind_of({"previous": 0.62, "sink": 0.31}, {"previous": 0.2, "sink": 0.2}, {"previous": 12, "sink": 12})
'-'
>>> kind_of({"previous": 0.62, "sink": 0.31}, {"previous": 0.2, "sink": 0.2}, {"previous": 30, "sink": 30})
'previous'
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

REACH = 4  # how many tokens before a query are near
LEAST = 0.4  # of what a head does, so much is to be of its kind
LEAST_BROAD = 0.8  # of the largest entropy: of 100 keys, as if 40 had all, each as much
FEWEST = 5  # queries
ONCE_IN = 1000  # heads: as many as a large model has


class Score(NamedTuple):
    """What a score says, and who described heads of which it is high."""

    definition: str
    source: str


SCORES = {
    "previous": Score(
        "weight on the token before",
        "Voita et al. 2019, arXiv:1905.09418 (positional heads)",
    ),
    "sink": Score(
        "weight on the first token, of queries that stand after it",
        "Xiao et al. 2023, arXiv:2309.17453 (attention sinks)",
    ),
    "self": Score(
        "weight on the token itself, of queries that stand after the first token",
        "Clark et al. 2019, arXiv:1906.04341",
    ),
    "local": Score(
        f"weight on tokens at most {REACH} places away, of queries that see further",
        "Clark et al. 2019, arXiv:1906.04341",
    ),
    "broad": Score(
        "entropy divided by the largest that is possible",
        "Clark et al. 2019, arXiv:1906.04341 (heads of high entropy)",
    ),
    "induction": Score(
        "weight on earlier tokens that came after occurrences of the query's token",
        "Olsson et al. 2022, arXiv:2209.11895",
    ),
    "duplicate": Score(
        "weight on earlier occurrences of the query's token",
        "Wang et al. 2022, arXiv:2211.00593",
    ),
}
MEANS = ("entropy", "distance")  # beside the scores: means over all queries, in nats and in tokens
NONE = "-"  # the kind of a head that has none
GENERAL = ("local", "broad")  # of a head of which nothing more definite is known


def kind_of(
    scores: Mapping[str, float | None],
    chance: Mapping[str, float | None],
    queries: Mapping[str, int],
) -> str:
    """The kind of a head by the rule above: its highest score that fits; else "-".

    It is "local" or "broad" only where nothing more definite fits.

    Args:
        scores, chance, queries: by the names of `SCORES`; None where nothing is known.
    """
    fitting = {
        name: score
        for name, score in scores.items()
        if score is not None and fits(name, score, chance.get(name), queries.get(name, 0))
    }
    definite = {name: score for name, score in fitting.items() if name not in GENERAL}
    group = definite or fitting
    return max(group, key=lambda name: group[name]) if group else NONE


def fits(name: str, score: float, chance: float | None, queries: int) -> bool:
    """Whether a head may be called by a score."""
    if queries < FEWEST or score < (LEAST_BROAD if name == "broad" else LEAST):
        return False
    return name == "broad" or (chance is not None and is_above(score, chance, queries))


def is_above(score: float, chance: float, queries: int) -> bool:
    """Whether shuffled rows would have so high a mean less than once in `ONCE_IN`."""
    if score <= chance:
        return False
    return queries * _divergence(min(score, 1.0), chance) >= math.log(ONCE_IN)


def _divergence(one: float, other: float) -> float:
    """KL(one ‖ other) of two shares, in nats; infinite where `other` leaves no room."""
    parts = ((one, other), (1.0 - one, 1.0 - other))
    if any(s > 0 and c <= 0 for s, c in parts):
        return math.inf
    return sum(s * math.log(s / c) for s, c in parts if s > 0)
