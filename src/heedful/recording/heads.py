"""`Head`, one head of a recorded call with its scores and its kind; and the list of all heads."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from torch import Tensor

from heedful.head_kinds import MEANS, NONE, SCORES, kind_of
from heedful.recording.call import Call
from heedful.recording.head_scores import ChanceScores, ScoreEvidence, over_parts
from heedful.recording.module_names import side_of
from heedful.recording.progress import OnProgress, sub_progress
from heedful.recording.proof import Provable


class CallInfo(Provable, Protocol):
    """The fields that `Head` copies from a call, or from the same call over many texts."""

    name: str
    layer: int | None
    kind: str
    pass_index: int

    @property
    def heads(self) -> list[int]:
        """The number of each head in the model."""


class Head(NamedTuple):
    """One head of one call, with its scores over all parts of one text.

    layer, head: numbers in the model, from 0; `layer` is None if the module's name has no number.
    previous, sink, self_, local, broad, induction, duplicate: the scores, 0 to 1, each a mean over
        the queries that have a choice (`heedful.head_kinds.SCORES` defines them). None if
        undefined, such as previous, self_, local, induction and duplicate in cross-attention,
        induction and duplicate without ids or repeated tokens, and all scores of a refuted call.
    entropy, distance: means over all queries, in nats and in tokens; None for a refuted call, and
        distance in cross-attention.
    kind: the score that names the head, such as "previous" or "self". "-" unless some score is
        high, above chance and based on enough queries (`heedful.head_kinds` states the rule).
    call: the index of the call among those on its text, as in `recording[head.call]`.
    name: the name of the module. attention: "self", "causal" or "cross". pass_index, proof, layout,
        why: those of the call.
    chance: the expected score if the weights of each row are shuffled among the unmasked keys, by
        name ("self" for self_). None if the score is None, and for broad, which shuffling keeps.
    queries: the number of queries in the mean of each score, by name; 0 if the score is None.
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


def heads_of(calls: list[Call], progress: OnProgress | None = None) -> list[Head]:
    """Return the heads of all calls on a text, in the order of the calls.

    `calls` must include any cross-attention, which shows that the model reads two texts. `progress`
    is called with the completed share, 0 to 1.
    """
    chance_scores, heads = ChanceScores(), []
    for i, call in enumerate(with_reliable_ids(calls)):
        is_refuted = call.proof == "refuted"  # its heads are listed without scores
        in_call = sub_progress(progress, i, len(calls))
        evidence = {} if is_refuted else over_parts(call, chance_scores, in_call).evidence()
        heads += heads_with(call, i, evidence)
    return heads


def with_reliable_ids(calls: list[Call]) -> list[Call]:
    """Return the calls, without the token ids that may belong to the other text of the model."""
    if not any(call.is_cross for call in calls):
        return calls
    has_encoder = any(side_of(call.name) == "encoder" for call in calls)
    return [call if side_of(call.name, has_encoder) else replace(call, ids=None) for call in calls]


def heads_with(call: CallInfo, index: int, evidence: dict[str, ScoreEvidence]) -> list[Head]:
    """Return the heads of the call at an index; all scores are None if there is no evidence."""
    return [_head(call, index, i, evidence) for i in range(len(call.heads))]


def _head(call: CallInfo, index: int, i: int, evidence: dict[str, ScoreEvidence]) -> Head:
    names = (*SCORES, *MEANS)
    means = {name: _number(evidence[name].mean, i) if name in evidence else None for name in names}
    chance = {
        name: _number(evidence[name].chance, i) if name in evidence else None for name in SCORES
    }
    queries = {name: int(evidence[name].queries[i]) if name in evidence else 0 for name in SCORES}
    return Head(
        layer=call.layer, head=call.heads[i],
        **{_field(name): number for name, number in means.items()},
        kind=kind_of({name: means[name] for name in SCORES}, chance, queries) if evidence else NONE,
        call=index, name=call.name, attention=call.kind, pass_index=call.pass_index,
        proof=call.proof, layout=call.layout, why=call.why, chance=chance, queries=queries,
    )  # fmt: skip


def _field(name: str) -> str:
    """Return the field of a score; `self` cannot be a field of a NamedTuple."""
    return "self_" if name == "self" else name


def _number(values: Tensor | None, i: int) -> float | None:
    return None if values is None or values[i].isnan() else float(values[i])
