"""A stage is one step of attention, of which any part can be computed; an explanation is all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from torch import Tensor

from heedful.errors import ArgumentError

Part: TypeAlias = Callable[[Sequence[int], Sequence[int]], Tensor]


@dataclass(frozen=True)
class Stage:
    """One step: what it is called, how large it is, what happened, and any part of its numbers.

    `shape` is (rows, columns), or (heads, rows, columns). `rows` and `columns` say what stands
    along them: "tokens", "memory" (the tokens of the other text in cross-attention) or "width".
    `part(rows, columns)` gives the numbers of chosen rows and columns, of every head. Where each
    number is a sum of products, `factors` are the two stages that were multiplied.
    """

    name: str
    shape: tuple[int, ...]
    formula: str
    sentence: str
    rows: str
    columns: str
    part: Part = field(repr=False)
    factors: tuple[Stage, Stage] | None = field(default=None, repr=False)

    def numbers(self) -> Tensor:
        """All of them: (rows, columns), or (heads, rows, columns)."""
        return self.part(range(self.shape[-2]), range(self.shape[-1]))

    def of_head(self, head: int, heads: int, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        """The part that one of H query heads uses, (rows, columns); groups share a key head."""
        part = self.part(rows, columns)
        return part[head * len(part) // heads] if part.ndim == 3 else part

    def terms(self, row: int, column: int, head: int, heads: int) -> tuple[Tensor, Tensor]:
        """The two vectors whose dot product is the number at a row and a column."""
        left, right = cast("tuple[Stage, Stage]", self.factors)
        first = left.of_head(head, heads, [row], range(left.shape[-1]))[0]
        if self.columns == "width":
            return first, right.of_head(head, heads, range(right.shape[-2]), [column])[:, 0]
        return first, right.of_head(head, heads, [column], range(right.shape[-1]))[0]


@dataclass(frozen=True)
class Explanation:
    """A text's way through attention; the last stage is the layer's output.

    `tokens` are those that ask, `memory` those of the other text where there is one; `notes` say
    where the numbers come from; `head` is the one of `heads` to look at.
    """

    title: str
    tokens: tuple[str, ...]
    memory: tuple[str, ...]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    heads: int = 1
    head: int = 0

    def labels(self, kind: str) -> Sequence[str]:
        """What stands along rows or columns of a kind; the numbers of a vector have no names."""
        return {"tokens": self.tokens, "memory": self.memory}.get(kind, ())

    def stage(self, name: str) -> Stage:
        """The stage of a name."""
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


def held(
    name: str,
    tensor: Tensor,
    formula: str,
    sentence: str,
    rows: str,
    factors: tuple[Stage, Stage] | None = None,
) -> Stage:
    """A stage whose numbers are all there: (rows, width), or (heads, rows, width)."""

    def part(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        return tensor[..., list(rows), :][..., list(columns)]

    shape = tuple(tensor.shape)
    return Stage(name, shape, formula, sentence, rows, "width", part, factors)


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
