"""A stage is one step of a model, of which any part can be computed; an explanation is all.

Stages are data, for a page in a terminal, pictures or JSON: none of them knows how it is shown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

from torch import Tensor

from heedful.errors import ArgumentError

Part: TypeAlias = Callable[[Sequence[int], Sequence[int]], Tensor]


class Formula(NamedTuple):
    """How one number comes about: a text with a place for each of the numbers in it.

    Without numbers it says where the number stands, such as a row of a table.

    >>> Formula("{} + {}", (0.5, 0.25)).text.format(0.5, 0.25)
    '0.5 + 0.25'
    """

    text: str
    numbers: tuple[float | int, ...]


How: TypeAlias = Callable[[int, int, int], Formula]


@dataclass(frozen=True)
class Stage:
    """One step: what it is called, how large it is, what happened, and any part of its numbers.

    `shape` is (rows, columns), or (heads, rows, columns). `rows` and `columns` say what stands
    along them: "tokens", "memory" (the tokens of the other text, which an encoder reads),
    "vocabulary", "id" or "width". `part(rows, columns)` gives the numbers of chosen rows and
    columns, of every head.

    Where each number is a sum of products, `factors` are the two stages that were multiplied, and
    `bias`, (columns) or (heads, columns), is what was added. Where it is not, `how(head, row,
    column)` tells one number's formula, `sources` are the stages that it reads, and `reads` is
    what of each of them: the "number" at its place, its "row", the "pair" of numbers half a row
    apart, or its number in a "head" that was joined with others. `chain` are the shapes through
    which it came, the batch's axis with them. Stages with the same `step` belong together. `kind`
    is what a stage is, whatever it is called, where a view shows it in its own way: "table",
    "embeddings", "positions", "input", "memory", "query", "key", "value", "scores", "scaled",
    "masked", "weights", "context", "joined", "output", "inner", "fed", "sum" or "norm".
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
    how: How | None = field(default=None, repr=False)
    sources: tuple[Stage, ...] = field(default=(), repr=False)
    reads: str = ""
    chain: tuple[tuple[int, ...], ...] = ()
    step: str = ""
    kind: str = ""

    def numbers(self) -> Tensor:
        """All of them: (rows, columns), or (heads, rows, columns)."""
        return self.part(range(self.shape[-2]), range(self.shape[-1]))

    def of_head(self, head: int, heads: int, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        """The part that one of H query heads uses, (rows, columns); groups share a key head."""
        part = self.part(rows, columns)
        return part[head * len(part) // heads] if part.ndim == 3 else part

    def terms(
        self, row: int, column: int, head: int = 0, heads: int = 1
    ) -> tuple[Tensor, Tensor, float | None]:
        """The two vectors whose product a number is, and the bias added to it; needs `factors`."""
        left, right = cast("tuple[Stage, Stage]", self.factors)
        first = left.of_head(head, heads, [row], range(left.shape[-1]))[0]
        if self.columns in ("tokens", "memory"):
            return first, right.of_head(head, heads, [column], range(right.shape[-1]))[0], None
        second = right.of_head(head, heads, range(right.shape[-2]), [column])[:, 0]
        if self.bias is None:
            return first, second, None
        bias = self.bias if self.bias.ndim == 1 else self.bias[head * len(self.bias) // heads]
        return first, second, float(bias[column])

    def formula_of(self, row: int, column: int, head: int = 0, heads: int = 1) -> Formula:
        """The formula of the number at a row and a column; needs `how`."""
        own = head * self.shape[0] // heads if len(self.shape) == 3 else 0
        return cast("How", self.how)(own, row, column)


def reader_of(stage: Stage) -> Callable[[int, int], list[float]]:
    """What gives a row of a stage, by head (0 where there are none) and row.

    Each is computed once, though a page asks for the formula of every number in it.
    """

    @functools.lru_cache(maxsize=64)
    def row(head: int, at: int) -> list[float]:
        whole = stage.part([at], range(stage.shape[-1]))
        return whole.reshape(-1, stage.shape[-1])[head].tolist()

    return row


class Likely(NamedTuple):
    """A token that may stand at a place, and how probable it is among all."""

    token: str
    id: int
    probability: float


class Answer(NamedTuple):
    """What a model says at one place, the likeliest token first."""

    place: int
    likeliest: tuple[Likely, ...]


@dataclass(frozen=True)
class Section:
    """Stages that belong together: a layer's attention, its feed-forward, the way to a word.

    `kind` is "vectors" (from text to vectors, or states), "attention", "cross-attention",
    "feed-forward", "blocks" (each stage is a whole block, of which a line is enough) or "words";
    `side` is "encoder" or "decoder" in a model that has both; `layer` is the block of the model
    that the stages are of, from 0.
    """

    title: str
    stages: tuple[Stage, ...]
    kind: str = "vectors"
    side: str = ""
    layer: int | None = None

    def of_kind(self, kind: str) -> Stage | None:
        """The first stage of a kind; None without any."""
        return next((stage for stage in self.stages if stage.kind == kind), None)

    def stage(self, name: str) -> Stage:
        """The stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def before(self, stage: Stage) -> Stage:
        """The stage that comes before another."""
        return self.stages[self.stages.index(stage) - 1]


@dataclass(frozen=True)
class Explanation:
    """A text's way through attention, or through a whole model, section after section.

    `tokens` are those that ask, `memory` those of the other text where there is one; `notes` say
    where the numbers come from; `head` is the one of `heads` to look at. `vocabulary` names the
    ids of a model; `answers` are what it says in the end (`asked` is what of, such as "tokens
    after"), `missing` why it says nothing.
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
    asked: str = ""
    answers: tuple[Answer, ...] = ()
    missing: str = ""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those of all sections, in order; the last one is what comes out."""
        return tuple(stage for section in self.sections for stage in section.stages)

    def labels(self, kind: str) -> Sequence[str]:
        """What stands along rows or columns of a kind; the numbers of a vector have no names."""
        known = {"tokens": self.tokens, "memory": self.memory, "vocabulary": self.vocabulary}
        return known.get(kind, ())

    def answer(self, place: int) -> Answer | None:
        """What the model says at any place; None where it has no head that says something."""
        stages = self.sections[-1].stages
        if not self.vocabulary or stages[-1].columns != "vocabulary":
            return None
        return answer(stages[-1], place, self.vocabulary)

    def stage(self, name: str) -> Stage:
        """The first stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def places(self, query: str) -> list[int]:
        """Where a word stands among the tokens, from 0, or the place that `@4` names.

        Raises:
            ArgumentError: a word that is not there, or a place outside the text.
        """
        for same in (str, _bare, lambda token: _bare(token).casefold()):
            found = [n for n, token in enumerate(self.tokens) if same(token) == same(query)]
            if found:
                return found
        number = query.removeprefix("@")
        if query != number and number.isdecimal() and int(number) < len(self.tokens):
            return [int(number)]
        some = ", ".join(dict.fromkeys(self.tokens[:12])) + (", …" if len(self.tokens) > 12 else "")
        raise ArgumentError(
            f"no token {query!r} in the text",
            expected=f"one of {some}, or a place such as @{len(self.tokens) - 1}",
        )


def answer(probabilities: Stage, place: int, names: Sequence[str], count: int = 10) -> Answer:
    """The likeliest tokens at a place, by a stage of probabilities (N, V)."""
    size = probabilities.shape[-1]
    top = probabilities.part([place], range(size))[0].topk(min(count, size))
    return Answer(
        place,
        tuple(
            Likely(names[id], id, share)
            for id, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ),
    )


def held(
    name: str,
    tensor: Tensor,
    formula: str,
    sentence: str,
    rows: str,
    factors: tuple[Stage, Stage] | None = None,
    columns: str = "width",
    **more: Any,
) -> Stage:
    """A stage whose numbers are all there: (rows, width), or (heads, rows, width)."""

    def part(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        return tensor[..., list(rows), :][..., list(columns)]

    shape = tuple(tensor.shape)
    return Stage(name, shape, formula, sentence, rows, columns, part, factors, **more)


def check_index(what: str, index: int, count: int) -> None:
    """Refuse a layer or head that is not there."""
    if not 0 <= index < count:
        raise ArgumentError(
            f"{what} {index}",
            expected=f"{what} 0" + (f" to {count - 1}" if count > 1 else ", the only one"),
        )


def _bare(token: str) -> str:
    """A token without the signs for a space or a line's end that tokenizers show."""
    return token.strip(" ·↵⇥")
