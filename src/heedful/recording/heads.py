"""The heads of a recording as a list: where each is, its scores, its kind, and the evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from torch import Tensor

from heedful.head_kinds import MEANS, NONE, SCORES, kind_of
from heedful.recording.call import Call
from heedful.recording.head_scores import Even, Evidence, over_parts
from heedful.recording.module_names import side_of
from heedful.recording.progress import Tell, within
from heedful.recording.proof import Known


class Place(Known, Protocol):
    """Which heads, of what, and how much of it is certain: a call, or the same call of many texts.

    Each is as in `Head`; `heads` are the model's own numbers.
    """

    name: str
    layer: int | None
    kind: str
    pass_index: int

    @property
    def heads(self) -> list[int]:
        """The model's own number of each head."""


class Head(NamedTuple):
    """One head of one call on one sequence.

    layer, head: the model's own numbers, from 0; a layer is None where the module's name has none.
    previous, sink, self_, local, broad, induction, duplicate: the scores, 0 to 1, each a mean over
        the queries that have a choice (`heedful.head_kinds.SCORES` defines them). None where the
        call or its text can say nothing: previous, self_ and local of cross-attention; induction
        and duplicate without the tokens' ids, or where no token comes again; all of a refuted call.
    entropy, distance: means over all queries, in nats and in tokens; None as above.
    kind: the score by which the head is called, such as "previous" or "self"; "-" where none is
        high, rests on enough queries and is above chance (the rule is in `heedful.head_kinds`).
    call: the place of the call in its sequence, so that `recording[head.call]` is it.
    name: that of the module. attention: "self", "causal" or "cross". pass_index: as the call's.
    proof, layout, why: as the call's.
    chance: for each score by its name, "self" for self_, what the same rows give with their keys
        shuffled within what the mask allows; None where the score is None, and of broad, which
        shuffling does not change.
    queries: for each score by its name, on how many queries it rests; 0 where it is None.
    """

    layer: int | None
    head: int
    previous: float | None
    sink: float | None
    self_: float | None
    local: float | None
    broad: float | None
    induction: float | None
    duplicate: float | None
    entropy: float | None
    distance: float | None
    kind: str
    call: int
    name: str
    attention: str
    pass_index: int
    proof: str
    layout: str
    why: str
    chance: dict[str, float | None]
    queries: dict[str, int]

    @property
    def scores(self) -> dict[str, float | None]:
        """The scores by their names."""
        return {name: getattr(self, _field(name)) for name in SCORES}


def heads_of(calls: list[Call], progress: Tell | None = None) -> list[Head]:
    """The heads of calls of one sequence, call by call.

    They are all of a sequence, so that those of two texts are known by their cross-attention;
    `progress` is told of the share that is done, 0 to 1.
    """
    even, heads = Even(), []
    for at, call in enumerate(with_sure_ids(calls)):
        is_refuted = call.proof == "refuted"  # it keeps its place, and shows no number
        tell = within(progress, at, len(calls))
        numbers = {} if is_refuted else over_parts(call, even, tell).evidence()
        heads += heads_with(call, at, numbers)
    return heads


def with_sure_ids(calls: list[Call]) -> list[Call]:
    """The calls of a sequence; of two texts, with the tokens that their module's name says."""
    if not any(call.crosses for call in calls):
        return calls
    has_encoder = any(side_of(call.name) == "encoder" for call in calls)
    return [call if side_of(call.name, has_encoder) else replace(call, ids=None) for call in calls]


def heads_with(call: Place, at: int, numbers: dict[str, Evidence]) -> list[Head]:
    """The heads of the call at a place, by the numbers of all of them; none where it is refuted."""
    return [_head(call, at, i, numbers) for i in range(len(call.heads))]


def _head(call: Place, at: int, i: int, numbers: dict[str, Evidence]) -> Head:
    names = (*SCORES, *MEANS)
    means = {name: _number(numbers[name].mean, i) if name in numbers else None for name in names}
    chance = {
        name: _number(numbers[name].chance, i) if name in numbers else None for name in SCORES
    }
    queries = {name: int(numbers[name].queries[i]) if name in numbers else 0 for name in SCORES}
    return Head(
        layer=call.layer, head=call.heads[i],
        **{_field(name): number for name, number in means.items()},
        kind=kind_of({name: means[name] for name in SCORES}, chance, queries) if numbers else NONE,
        call=at, name=call.name, attention=call.kind, pass_index=call.pass_index,
        proof=call.proof, layout=call.layout, why=call.why, chance=chance, queries=queries,
    )  # fmt: skip


def _field(name: str) -> str:
    """The field of a score: `self` would be Python's own."""
    return "self_" if name == "self" else name


def _number(values: Tensor | None, i: int) -> float | None:
    return None if values is None or values[i].isnan() else float(values[i])
