"""The types of an explanation: a `Stage` is a step of a model, an `Explanation` has all stages.

Explanations are only data; `views/` turns them into terminal output, web pages, pictures and JSON.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.token_names import distinct

Part: TypeAlias = Callable[[Sequence[int], Sequence[int]], Tensor]


class Formula(NamedTuple):
    """The formula of one number: a text with a placeholder {} for each number in the formula.

    The text may instead name the source of the number, such as a row of a table.

    >>> Formula("{} + {}", (0.5, 0.25)).text.format(0.5, 0.25)
    '0.5 + 0.25'
    """

    text: str
    numbers: tuple[float | int, ...]


NumberFormula: TypeAlias = Callable[[int, int, int], Formula]


@dataclass(frozen=True)
class Stage:
    """One step of a model: its name, shape, formula, an explaining sentence, and its numbers.

    `shape` is (rows, columns) or (heads, rows, columns). `rows` and `columns` name these axes:
    "tokens", "memory" (the tokens of the second text, which an encoder reads), "vocabulary", "id"
    or "width". `part(rows, columns)` returns the numbers of some rows and columns, for every head.

    If the stage is a matrix product, `factors` are the two stages that are multiplied, and a `bias`
    of shape (columns) or (heads, columns) is added. In other stages `number_formula(head, row,
    column)`, if any, returns the formula of one number, and `sources` are the stages that the
    formula uses. `reads` names the part of a source that it uses: the "number" at the same row and
    column, the "row", the "pair" of numbers half a row apart, or a number of one head ("head").

    For views that compute other texts, `rule` names the operation of a stage that is not a product,
    and `constants` are its numbers that depend on no text. `origin` returns the stage from which
    this stage is computed, if neither factors nor sources show it.

    `chain` lists the shapes before and after each reshaping, with the batch axis. Stages with the
    same `step` are shown together. `kind` is the stage's role in views, if any: "table",
    "embeddings", "segments", "positions", "input", "memory", "query", "key", "value", "scores",
    "scaled", "masked", "weights", "context", "joined", "output", "inner", "fed", "sum" or "norm".
    """

    name: str
    shape: tuple[int, ...]
    formula: str
    sentence: str
    rows: str
    columns: str
    part: Part = field(repr=False)
    factors: tuple[Stage, Stage] | None = field(default=None, repr=False)
    bias: Tensor | None = field(default=None, repr=False)
    number_formula: NumberFormula | None = field(default=None, repr=False)
    sources: tuple[Stage, ...] = field(default=(), repr=False)
    reads: str = ""
    rule: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict, repr=False)
    origin: Callable[[], Stage] | None = field(default=None, repr=False)
    chain: tuple[tuple[int, ...], ...] = ()
    step: str = ""
    kind: str = ""

    @property
    def inputs(self) -> tuple[Stage, ...]:
        """The stages that this stage is computed from."""
        return self.factors or self.sources or ((self.origin(),) if self.origin else ())

    def numbers(self) -> Tensor:
        """Return all numbers, (rows, columns) or (heads, rows, columns)."""
        return self.part(range(self.shape[-2]), range(self.shape[-1]))

    def of_head(self, head: int, heads: int, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        """Return the part that query head `head` of `heads` uses, (rows, columns).

        With grouped heads, several query heads use the same part.
        """
        part = self.part(rows, columns)
        return part[head * len(part) // heads] if part.ndim == 3 else part

    def terms(
        self, row: int, column: int, head: int = 0, heads: int = 1
    ) -> tuple[Tensor, Tensor, float | None]:
        """Return two vectors and a bias or None: their dot product plus the bias is the number.

        The stage must have `factors`.
        """
        left, right = cast("tuple[Stage, Stage]", self.factors)
        vector = left.of_head(head, heads, [row], range(left.shape[-1]))[0]
        if self.columns in ("tokens", "memory"):
            return vector, right.of_head(head, heads, [column], range(right.shape[-1]))[0], None
        weights = right.of_head(head, heads, range(right.shape[-2]), [column])[:, 0]
        if self.bias is None:
            return vector, weights, None
        bias = self.bias if self.bias.ndim == 1 else self.bias[head * len(self.bias) // heads]
        return vector, weights, float(bias[column])

    def formula_of(self, row: int, column: int, head: int = 0, heads: int = 1) -> Formula:
        """Return the formula of the number at a row and a column; needs `number_formula`."""
        stored_head = head * self.shape[0] // heads if len(self.shape) == 3 else 0
        return cast("NumberFormula", self.number_formula)(stored_head, row, column)


def row_reader(stage: Stage) -> Callable[[int, int], list[float]]:
    """Return a function (head, row) that returns a row of a stage, and caches rows.

    `head` is 0 if the stage has no heads.
    """

    @functools.lru_cache(maxsize=64)
    def read(head: int, row: int) -> list[float]:
        all_heads = stage.part([row], range(stage.shape[-1]))
        return all_heads.reshape(-1, stage.shape[-1])[head].tolist()

    return read


class Likely(NamedTuple):
    """A likely token, its id and its probability."""

    token: str
    id: int
    probability: float


class Answer(NamedTuple):
    """A model's prediction at one position: the likeliest tokens, in order of probability."""

    position: int
    likeliest: tuple[Likely, ...]


@dataclass(frozen=True)
class Section:
    """Stages that belong together: a block's attention, its feed-forward, or the predictions.

    `kind` is "vectors" (from text to vectors, or final states), "attention", "cross-attention",
    "feed-forward", "blocks" (each stage is a block, shown as one line) or "words" (predictions).
    `side` is "encoder" or "decoder" in a model that has both. `layer` is the number of the block
    that the stages belong to, from 0, or None.
    """

    title: str
    stages: tuple[Stage, ...]
    kind: str = "vectors"
    side: str = ""
    layer: int | None = None

    def of_kind(self, kind: str) -> Stage | None:
        """Return the first stage of a kind, or None if there is none."""
        return next((stage for stage in self.stages if stage.kind == kind), None)

    def stage(self, name: str) -> Stage:
        """Return the stage with this name."""
        return next(stage for stage in self.stages if stage.name == name)


@dataclass(frozen=True)
class Explanation:
    """All steps of a text through attention or through a whole model, in sections.

    `tokens` are the tokens of the queries, `memory` the tokens of the second text, if any. `notes`
    explain the origin of the numbers. Views show the head `head` of `heads` and the block `layer`
    of `layers`. `vocabulary` has the label of each id of a model. `answers` are the model's
    predictions. `predicted` names the predictions in headings, such as "tokens after". `missing` is
    a message for the reader if there are no predictions. `query` is the position of the token whose
    row is written out; None for a default.
    """

    title: str
    tokens: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    memory: tuple[str, ...] = ()
    heads: int = 1
    head: int = 0
    layers: int = 1
    layer: int = 0
    vocabulary: Sequence[str] = ()
    predicted: str = ""
    answers: tuple[Answer, ...] = ()
    missing: str = ""
    query: int | None = None

    @property
    def row(self) -> int:
        """The selected row: `query`, or else that of the last answer, or else the second."""
        if self.query is not None:
            return self.query
        return self.answers[-1].position if self.answers else min(1, len(self.tokens) - 1)

    def of_token(self, position: int) -> Explanation:
        """Return the walk with the row of this token selected, and only its prediction."""
        answer = self.answer(position)
        answers = () if answer is None else (answer,)
        return replace(self, query=position, answers=answers)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of all sections, in order; the last one is the output."""
        return tuple(stage for section in self.sections for stage in section.stages)

    def labels(self, kind: str) -> Sequence[str]:
        """Return the labels along an axis; empty for "width" and "id".

        Labels of "tokens" and "memory" are distinct.
        """
        if kind == "vocabulary":
            return self.vocabulary
        return distinct({"tokens": self.tokens, "memory": self.memory}.get(kind, ()))

    def answer(self, position: int) -> Answer | None:
        """Return the prediction at a position, or None if the model predicts no tokens."""
        stages = self.sections[-1].stages
        if not self.vocabulary or stages[-1].columns != "vocabulary":
            return None
        return answer(stages[-1], position, self.vocabulary)

    def stage(self, name: str) -> Stage:
        """Return the first stage with this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def positions_of(self, word: str) -> list[int]:
        """Return the positions of a word among the tokens, from 0; "@4" is the position 4.

        Raises:
            ArgumentError: the text lacks the word or the position.
        """
        if word in self.labels("tokens"):
            return [self.labels("tokens").index(word)]
        for normalise in (str, _bare, lambda token: _bare(token).casefold()):
            key = normalise(word)
            matches = [n for n, token in enumerate(self.tokens) if normalise(token) == key]
            if matches:
                return matches
        number = word.removeprefix("@")
        if word != number and number.isdecimal() and int(number) < len(self.tokens):
            return [int(number)]
        examples = ", ".join(dict.fromkeys(self.tokens[:12])) + ", …" * (len(self.tokens) > 12)
        raise ArgumentError(
            f"no token {word!r} in the text",
            expected=f"one of {examples}, or a position such as @{len(self.tokens) - 1}",
        )


def answer(probabilities: Stage, position: int, names: Sequence[str], count: int = 10) -> Answer:
    """Return the `count` likeliest tokens at a position, from a stage of probabilities (N, V)."""
    size = probabilities.shape[-1]
    top = probabilities.part([position], range(size))[0].topk(min(count, size))
    return Answer(
        position,
        tuple(
            Likely(names[id], id, share)
            for id, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ),
    )


def stored(
    name: str,
    tensor: Tensor,
    formula: str,
    sentence: str,
    rows: str,
    factors: tuple[Stage, Stage] | None = None,
    columns: str = "width",
    **fields: Any,
) -> Stage:
    """Return a stage that stores all its numbers, (rows, width) or (heads, rows, width)."""

    def part(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        return tensor[..., list(rows), :][..., list(columns)]

    shape = tuple(tensor.shape)
    return Stage(name, shape, formula, sentence, rows, columns, part, factors, **fields)


def _bare(token: str) -> str:
    """Return a token without spaces, line ends and tabs (or signs for them) at both ends."""
    return token.strip(" ·↵⇥")
