"""The heads of a model over many texts: each score is a mean over the queries of all of them.

A text of 900 queries weighs as much as nine of 100. Sums are exact (`heedful.ops.exact_sums`), so
that neither the order of the texts nor who read which changes a bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from heedful.errors import RunError
from heedful.recording.head_scores import Even, ScoreTotals, over_parts
from heedful.recording.heads import Head, heads_with, with_sure_ids
from heedful.recording.progress import Tell, within
from heedful.recording.proof import LAYOUTS, WORDS
from heedful.recording.recording import Recording

Number: TypeAlias = tuple[int, ...]  # that of a recording among all, whoever made it


@dataclass
class CallTotal:
    """One call of a model's pass over all recordings: a `Place`, and its scores added up.

    at: its place among the calls of a pass. first: the first recording that has it, which says
    `kind`, `pass_index` and `at`. proof, layout: the worst of any recording; why: that of the first
    with the worst proof, told_by. totals: None where it is refuted on any text.
    """

    name: str
    layer: int | None
    heads: list[int]
    kind: str
    pass_index: int
    at: int
    first: Number
    proof: str
    layout: str
    why: str
    told_by: Number
    totals: ScoreTotals | None

    def plus(self, other: CallTotal) -> CallTotal:
        """Both together; raises a RunError where they are not of the same heads."""
        if self.heads != other.heads:
            raise RunError(
                f"{self.name} has {len(self.heads)} heads on one text and {len(other.heads)} on "
                "another",
                expected="the same heads on every text",
            )
        early = min(self, other, key=lambda call: call.first)
        worst = min(self, other, key=lambda call: (-WORDS.index(call.proof), call.told_by))
        return CallTotal(
            self.name, self.layer, self.heads,
            early.kind, early.pass_index, early.at, early.first,
            worst.proof, max(self.layout, other.layout, key=LAYOUTS.index),
            worst.why, worst.told_by,
            None if self.totals is None or other.totals is None else self.totals.plus(other.totals),
        )  # fmt: skip


@dataclass
class HeadTotals:
    """What is gathered of every head over many recordings of one model.

    calls: by the name of their module, and which call of that module in a pass.
    missed: modules whose attention was not understood, and why.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> together = HeadTotals()
    >>> for number, size in enumerate((3, 9)):
    ...     together.add(from_attentions([torch.eye(size).expand(1, 2, size, size)]), (number,))
    >>> head, _ = together.heads()
    >>> head.kind, head.self_, head.queries["self"]  # 2 of 3 queries have a choice, 8 of 9
    ('self', 1.0, 10)
    """

    calls: dict[tuple[str, int], CallTotal] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)

    def add(
        self, recording: Recording, number: Number, name: str = "",
        progress: Tell = lambda share: None,
    ) -> None:  # fmt: skip
        """Take in all sequences of a recording.

        Args:
            recording: of the same model as the others.
            number: its own among all; the first one that has a call says what it is.
            name: what it is of, for the reason why a call is refuted.
            progress: is told of the share that is done, 0 to 1.

        Raises:
            RunError: a row that is not the model's, or other heads than before.
        """
        self.missed = {**recording.missed, **self.missed}
        sequences, even = recording.sequences, Even()
        for done, sequence in enumerate(sequences):
            seen: Counter[str] = Counter()
            calls = with_sure_ids(list(sequence))
            for at, call in enumerate(calls):
                is_refuted = call.proof == "refuted"
                tell = within(within(progress, done, len(sequences)), at, len(calls))
                totals = None if is_refuted else over_parts(call, even, tell)
                where = f" (of {name})" if name and is_refuted else ""
                total = CallTotal(
                    call.name, call.layer, call.heads, call.kind, call.pass_index, at, number,
                    call.proof, call.layout, f"{call.why}{where}", number, totals,
                )  # fmt: skip
                self._keep((call.name, seen[call.name]), total)
                seen[call.name] += 1

    def merge(self, other: HeadTotals) -> None:
        """Take in what another has seen, of other recordings; as if this one had seen them."""
        self.missed = {**other.missed, **self.missed}
        for key, call in other.calls.items():
            self._keep(key, call)

    def heads(self) -> list[Head]:
        """Every head of every call; `call` is its place in a pass over one text."""
        heads = []
        for call in (self.calls[key] for key in self._ordered()):
            heads += heads_with(
                call, call.at, {} if call.totals is None else call.totals.evidence()
            )
        return heads

    def certificate(self) -> list[tuple[str, CallTotal]]:
        """Each call by its module's name; its `proof` and `why` are the worst of any recording."""
        return [(name, self.calls[name, nth]) for name, nth in self._ordered()]

    def _ordered(self) -> list[tuple[str, int]]:
        return sorted(self.calls, key=lambda key: (self.calls[key].at, key))

    def _keep(self, key: tuple[str, int], call: CallTotal) -> None:
        known = self.calls.get(key)
        self.calls[key] = call if known is None else known.plus(call)
