"""Tells what kind a head is by seven scores from 0 to 1, each with its definition and its source.

Every score is a mean over the queries that have a choice: a query that may see one key only says
nothing about its head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.ops import statistics as of
from heedful.ops.statistics import RowStatistic
from heedful.recorder.kept.call import Call
from heedful.recorder.kept.progress import Progress, Tell

REACH = 4  # how many tokens before a query are near


class Kind(NamedTuple):
    """One score: its definition, who described it, and the statistic of rows whose mean it is."""

    definition: str
    source: str
    statistic: Callable[[Call], RowStatistic]


HEAD_TYPES = {
    "previous": Kind(
        "weight on the token before",
        "Voita et al. 2019, arXiv:1905.09418 (positional heads)",
        lambda call: of.Diagonal(1),
    ),
    "sink": Kind(
        "weight on the first token, of queries that stand after it",
        "Xiao et al. 2023, arXiv:2309.17453 (attention sinks)",
        lambda call: of.Sink(),
    ),
    "self": Kind(
        "weight on the token itself, of queries that see others too",
        "Clark et al. 2019, arXiv:1906.04341",
        lambda call: of.Diagonal(0),
    ),
    "local": Kind(
        f"weight on tokens at most {REACH} places away, of queries that see further",
        "Clark et al. 2019, arXiv:1906.04341",
        lambda call: of.Nearby(REACH),
    ),
    "broad": Kind(
        "entropy divided by the largest that is possible",
        "Clark et al. 2019, arXiv:1906.04341 (heads of high entropy)",
        lambda call: of.NormalizedEntropy(),
    ),
    "induction": Kind(
        "weight on tokens that came after earlier occurrences of the query's token",
        "Olsson et al. 2022, arXiv:2209.11895",
        lambda call: of.Matching(ids_of(call), 1),
    ),
    "duplicate": Kind(
        "weight on earlier occurrences of the query's token",
        "Wang et al. 2022, arXiv:2211.00593",
        lambda call: of.Matching(ids_of(call), 0),
    ),
}


# Progress beside the scores, each a mean over all queries: in nats, in tokens
MEANS: dict[str, Callable[[], RowStatistic]] = {"entropy": of.Entropy, "distance": of.Distance}


def scores(call: Call, progress: Tell = lambda share: None) -> dict[str, Tensor]:
    """(H,) for each kind, and for each of MEANS, in one pass over every row of the map.

    Without tokens, induction and duplicate are left out. A score is NaN where no query of the text
    can tell, as in a text where no token comes twice.

    Args:
        call: whose heads.
        progress: is told of the share that is done, 0 to 1, as the pass goes on.
    """
    statistics = {
        name: kind.statistic(call)
        for name, kind in HEAD_TYPES.items()
        if call.ids is not None or name not in ("induction", "duplicate")
    } | {name: statistic() for name, statistic in MEANS.items()}
    *rows, _ = call.gathered(*statistics.values(), Progress(progress))
    return {
        name: of.mean(_with_a_choice(name, values, call))
        for name, values in zip(statistics, rows, strict=True)
    }


def names(found: dict[str, Tensor], least: float = 0.4) -> list[str]:
    """The name of each head: the kind of its highest score, "-" where none reaches `least`.

    A head is called "local" or "broad" only where nothing more definite fits.
    """
    definite = [name for name in HEAD_TYPES if name in found and name not in ("local", "broad")]
    called = []
    for head in range(len(next(iter(found.values())))):
        for group in (definite, ["local", "broad"]):
            best = max(group, key=lambda name: _number(found[name][head]))
            if _number(found[best][head]) >= least:
                called.append(best)
                break
        else:
            called.append("-")
    return called


def _with_a_choice(name: str, values: Tensor, call: Call) -> Tensor:
    """The values of rows that had a choice; NaN for rows that could look nowhere else."""
    least = {"sink": 1, "self": 1, "local": REACH + 1}.get(name, 0)
    if call.kind != "causal":
        return values
    position = torch.arange(call.shape[1], device=values.device) + call.causes.offset
    return values.masked_fill(position < least, torch.nan)


def _number(value: Tensor) -> float:
    return -math.inf if value.isnan() else float(value)


def ids_of(call: Call) -> Tensor:
    """The tokens of the keys.

    Raises:
        RunError: a call whose tokens are not known.
    """
    if call.ids is None:
        raise RunError(
            f"no tokens of {call.name}",
            expected="a model that was given input_ids, and attends to them",
        )
    return call.ids
