"""Head scores over many texts: each score is a mean over the queries of all texts.

So a text of 900 queries counts as much as nine texts of 100 queries. Sums are exact: they depend
neither on the order of the texts, nor on which process reads a text (`heedful.ops.exact_sums`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from heedful.errors import RunError
from heedful.recording.head_scores import ChanceScores, ScoreTotals, over_parts
from heedful.recording.heads import Head, heads_with, with_reliable_ids
from heedful.recording.progress import OnProgress, sub_progress
from heedful.recording.proof import LAYOUTS, PROOFS
from heedful.recording.recording import Recording

Number: TypeAlias = tuple[int, ...]  # the number of a recording, unique among all processes


@dataclass
class CallTotal:
    """One call of a model, with its scores summed over all recordings; a `CallInfo`.

    call_index: the index of the call among all calls on its text.
    first: the lowest number of a recording with this call, which sets `kind` and both indices.
    proof, layout: the worst of all recordings. why: the reason, from recording number `why_from`.
    totals: the sums of the scores; None if the call is refuted on any text.
    """

    name: str
    layer: int | None
    heads: list[int]
    kind: str
    pass_index: int
    call_index: int
    first: Number
    proof: str
    layout: str
    why: str
    why_from: Number
    totals: ScoreTotals | None

    def plus(self, other: CallTotal) -> CallTotal:
        """Return the call with other recordings added; raise a RunError if the heads differ."""
        if self.heads != other.heads:
            raise RunError(
                f"{self.name} has {len(self.heads)} heads on one text and {len(other.heads)} on "
                "another",
                expected="the same heads on every text",
            )
        early = min(self, other, key=lambda call: call.first)
        worst = min(self, other, key=lambda call: (-PROOFS.index(call.proof), call.why_from))
        return CallTotal(
            self.name, self.layer, self.heads,
            early.kind, early.pass_index, early.call_index, early.first,
            worst.proof, max(self.layout, other.layout, key=LAYOUTS.index),
            worst.why, worst.why_from,
            None if self.totals is None or other.totals is None else self.totals.plus(other.totals),
        )  # fmt: skip


@dataclass
class HeadTotals:
    """The scores of every head, summed over many recordings of one model.

    calls: the calls, by the module's name and the number of the module's earlier calls on a text.
    missed: the modules whose attention was not recorded, with the reasons.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> totals = HeadTotals()
    >>> for number, size in enumerate((3, 9)):
    ...     totals.add(from_attentions([torch.eye(size).expand(1, 2, size, size)]), (number,))
    >>> head, _ = totals.heads()
    >>> head.kind, head.self_, head.queries["self"]  # 2 of 3 queries, and 8 of 9, have a choice
    ('self', 1.0, 10)
    """

    calls: dict[tuple[str, int], CallTotal] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)

    def add(
        self, recording: Recording, number: Number, name: str = "",
        progress: OnProgress = lambda share: None,
    ) -> None:  # fmt: skip
        """Add the calls on all texts of a recording.

        Args:
            recording: a recording of the same model.
            number: that of the recording, unique in all processes; the lowest determines `kind`.
            name: the name of the text, which `why` of a refuted call contains.
            progress: called with the completed share, 0 to 1.

        Raises:
            RunError: a call that is refuted when its rows are computed, or heads other than before.
        """
        self.missed = {**recording.missed, **self.missed}
        sequences, chance_scores = recording.sequences, ChanceScores()
        for completed, sequence in enumerate(sequences):
            counts: Counter[str] = Counter()
            calls = with_reliable_ids(list(sequence))
            in_sequence = sub_progress(progress, completed, len(sequences))
            for i, call in enumerate(calls):
                is_refuted = call.proof == "refuted"
                in_call = sub_progress(in_sequence, i, len(calls))
                totals = None if is_refuted else over_parts(call, chance_scores, in_call)
                text = f" (of {name})" if name and is_refuted else ""
                total = CallTotal(
                    call.name, call.layer, call.heads, call.kind, call.pass_index, i, number,
                    call.proof, call.layout, f"{call.why}{text}", number, totals,
                )  # fmt: skip
                self._add_call((call.name, counts[call.name]), total)
                counts[call.name] += 1

    def merge(self, other: HeadTotals) -> None:
        """Add the totals of other recordings."""
        self.missed = {**other.missed, **self.missed}
        for key, call in other.calls.items():
            self._add_call(key, call)

    def heads(self) -> list[Head]:
        """Return every head of every call; `head.call` is the `call_index` of the call."""
        heads = []
        for call in (self.calls[key] for key in self._ordered()):
            evidence = {} if call.totals is None else call.totals.evidence()
            heads += heads_with(call, call.call_index, evidence)
        return heads

    def certificate(self) -> list[tuple[str, CallTotal]]:
        """Return each call's module name and its `CallTotal`, with the worst proof and layout."""
        return [(name, self.calls[name, nth]) for name, nth in self._ordered()]

    def _ordered(self) -> list[tuple[str, int]]:
        return sorted(self.calls, key=lambda key: (self.calls[key].call_index, key))

    def _add_call(self, key: tuple[str, int], call: CallTotal) -> None:
        earlier = self.calls.get(key)
        self.calls[key] = call if earlier is None else earlier.plus(call)
