"""The names and definitions of head scores, and the rule that assigns a kind to a head.

This module does not import torch, so that a command's help can import it quickly.
`heedful.recording.head_scores` computes the scores.

**The rule.** A score is a mean over Q queries, those that have a choice: the mask allows a query to
attend to some of the keys that the score counts, and to some others. Chance is the
expected score if the weights of each row are shuffled among the keys that the mask allows. A head
has a kind if

1. the score is at least `MIN_SCORE` (`MIN_BROAD` for broad),
2. the mean is over at least `MIN_QUERIES` queries, and
3. shuffled rows would reach the score in fewer than one of `ONCE_IN` heads.

The third condition is Q · KL(score ‖ chance) ≥ log(`ONCE_IN`), where KL(s ‖ c) is
s · log(s / c) + (1 − s) · log((1 − s) / (1 − c)). By Hoeffding's inequality, the mean of Q
independent values between 0 and 1 is so far above its expectation with probability at most
1 / `ONCE_IN` (Hoeffding 1963, *Probability inequalities for sums of bounded random variables*,
theorem 1). Shuffling does not change the entropy of a row, so `broad` has no chance score,
and only conditions 1 and 2 apply to it.

The four thresholds are conventions. With them, a head that always attends to the previous token is
"previous" if the text has seven tokens or more, and none of 144 heads with shuffled weights gets a
kind.

>>> kind_of({"previous": 0.62, "sink": 0.31}, {"previous": 0.2, "sink": 0.2}, {"previous": 12, "sink": 12})
'-'
>>> kind_of({"previous": 0.62, "sink": 0.31}, {"previous": 0.2, "sink": 0.2}, {"previous": 30, "sink": 30})
'previous'
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

REACH = 4  # tokens before a query that count as local
MIN_SCORE = 0.4  # minimum share of a head's weight
MIN_BROAD = 0.8  # minimum score `broad`; 40 equally weighted keys of 100 reach it
MIN_QUERIES = 5
ONCE_IN = 1000  # heads; about as many as a large model has


class Score(NamedTuple):
    """The definition of a score, and a paper that describes heads with high scores."""

    definition: str
    source: str


SCORES = {
    "previous": Score(
        "weight on the token before", "Voita et al. 2019, arXiv:1905.09418 (positional heads)"
    ),
    "sink": Score(
        "weight on the first token, from queries after it",
        "Xiao et al. 2023, arXiv:2309.17453 (attention sinks)",
    ),
    "self": Score("weight on the token itself", "Clark et al. 2019, arXiv:1906.04341"),
    "local": Score(
        f"weight on tokens at most {REACH} positions away", "Clark et al. 2019, arXiv:1906.04341"
    ),
    "broad": Score(
        "entropy divided by the largest possible entropy",
        "Clark et al. 2019, arXiv:1906.04341 (heads of high entropy)",
    ),
    "induction": Score(
        "weight on tokens after earlier occurrences of the query's token",
        "Olsson et al. 2022, arXiv:2209.11895",
    ),
    "duplicate": Score(
        "weight on earlier occurrences of the query's token", "Wang et al. 2022, arXiv:2211.00593"
    ),
}
MEANS = ("entropy", "distance")  # more columns of a table: means over queries, in nats and tokens
NONE = "-"  # shown for a head without a kind
GENERAL = ("local", "broad")  # used only if no other kind applies


def kind_of(
    scores: Mapping[str, float | None],
    chance: Mapping[str, float | None],
    queries: Mapping[str, int],
) -> str:
    """Return the kind of a head: its highest score that satisfies the rule, or "-".

    The kinds "local" and "broad" apply only if no other kind does.

    Args:
        scores, chance: values by the names of `SCORES`; None if undefined.
        queries: the number of queries in the mean of each score, by the same names.
    """
    qualified = {
        name: score
        for name, score in scores.items()
        if score is not None and qualifies(name, score, chance.get(name), queries.get(name, 0))
    }
    specific = {name: score for name, score in qualified.items() if name not in GENERAL}
    group = specific or qualified
    return max(group, key=lambda name: group[name]) if group else NONE


def qualifies(name: str, score: float, chance: float | None, queries: int) -> bool:
    """Return whether a score satisfies the rule."""
    if queries < MIN_QUERIES or score < (MIN_BROAD if name == "broad" else MIN_SCORE):
        return False
    return name == "broad" or (chance is not None and exceeds_chance(score, chance, queries))


def exceeds_chance(score: float, chance: float, queries: int) -> bool:
    """Return whether shuffled rows reach this mean with a probability below 1 / `ONCE_IN`."""
    if score <= chance:
        return False
    return queries * _divergence(min(score, 1.0), chance) >= math.log(ONCE_IN)


def _divergence(p: float, q: float) -> float:
    """Return KL(p ‖ q) of two Bernoulli distributions, in nats; may be infinite."""
    parts = ((p, q), (1.0 - p, 1.0 - q))
    if any(s > 0 and c <= 0 for s, c in parts):
        return math.inf
    return sum(s * math.log(s / c) for s, c in parts if s > 0)
