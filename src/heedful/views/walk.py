"""The steps of attention as a page in a terminal: what happened, the formula, the numbers.

Small matrices stand there whole, large ones at their corners. No line is longer than the
terminal is wide, and without colours the page says the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from heedful.explain import Explanation, Stage
from heedful.views.numbers import (
    GAP,
    WHOLE,
    Labels,
    Matrix,
    bar,
    beside,
    corners,
    fit,
    products,
    shade,
    visible,
    written,
)

MARGIN, WIDEST = 3, 130
WIDE, WORDS = 100, 46  # from so many cells on, the words of a step stand left of its numbers
MANY = 40  # tokens that are listed at the top
LARGEST = 12  # keys that a followed query shows, where there are many
TABLES = ("W_query", "W_key", "W_value")


def show(screen: Console, explanation: Explanation) -> None:
    """Print every step, with the numbers of all tokens."""
    page = Page(screen, explanation)
    page.top()
    for stages in _together(explanation, TABLES, ("query", "key", "value")):
        page.stage(*stages)


def follow(screen: Console, explanation: Explanation, places: Sequence[int]) -> None:
    """Print every step for one token alone, its sums written out.

    Args:
        screen: where to.
        explanation: of the text.
        places: where the token stands; the first of them is followed.
    """
    page = Page(screen, explanation, places[0])
    page.top()
    if len(places) > 1:
        others = ", ".join(f"@{place}" for place in places[1:6]) + ("…" if len(places) > 6 else "")
        page.say(
            f"It stands at {len(places)} places. Here the first, @{places[0]}; see also "
            f"--query {others}."
        )
    for stages in _together(explanation, TABLES, ("key", "value")):
        if len(stages) > 1:
            page.stage(*stages)
        else:
            page.row(*stages)


def _together(found: Explanation, *groups: tuple[str, ...]) -> Iterator[list[Stage]]:
    """The stages in order, those of a group as one step."""
    stages = list(found.stages)
    while stages:
        names = next((group for group in groups if stages[0].name == group[0]), ("",))
        yield stages[: len(names)]
        del stages[: len(names)]


class Page:
    """What is printed of an explanation on a console, step after step.

    `query` is the place of the token that is followed. Of several heads the chosen one is shown,
    and the weights of the others.
    """

    def __init__(self, screen: Console, explanation: Explanation, query: int | None = None) -> None:
        self.screen, self.explanation, self.query = screen, explanation, query
        self.coloured = screen.color_system is not None and not screen.no_color
        self.room = max(20, min(screen.width, WIDEST) - MARGIN)
        self._number = itertools.count(1)

    def top(self) -> None:
        """What is shown, where its numbers come from, and the tokens with their places."""
        found = self.explanation
        name, _, says = found.title.partition(": ")
        self.screen.print()
        self.say("heedful explain ", "bold", (f"· {name}", "bold"), (f"  {says}", "dim"), margin=0)
        if found.heads > 1:
            self.say(f"Head {found.head} of {found.heads}; --head shows another.", margin=0)
        for note in found.notes:
            self.say(note, "dim", margin=0)
        for name, tokens in (("tokens", found.tokens), ("tokens of the memory", found.memory)):
            if tokens:
                self._head(name, f"{len(tokens):,}")
                self._tokens(tokens, self.query if tokens is found.tokens else None)

    def stage(self, *stages: Stage) -> None:
        """One step, or several that belong together, with all tokens."""
        self._title(*stages)
        several = len(stages) > 1
        left = self.room >= WIDE and not several and self._fits_beside(stages[0])
        room = self.room - WORDS - GAP if left else self.room
        if several and self.room >= WIDE:
            room = (self.room - (len(stages) - 1) * GAP) // len(stages)
        blocks = [
            matrix.lines(room)
            for stage in stages
            for matrix in self._matrices(stage, titled=several)
        ]
        words = self._words(stages, WORDS if left else self.room)
        example = self._example(stages[0], WORDS if left else self.room)
        parts = beside(blocks, room if left else self.room)
        if left:
            numbers = [line for part in parts for line in (Text(), *part)][1:]
            if example:
                words += [Text(), *example]
            self._print(_columns(words, numbers))
        else:
            self._print(words, *parts, example)

    def _fits_beside(self, stage: Stage) -> bool:
        """Whether as much of the numbers is seen beside the words as under them."""
        beside, under = (
            sum(line.plain.count("…") for m in self._matrices(stage) for line in m.lines(room))
            for room in (self.room - WORDS - GAP, self.room)
        )
        return beside <= under

    def row(self, stage: Stage) -> None:
        """One step for the followed token alone."""
        self._title(stage)
        self._print(self._words([stage], self.room))
        self.screen.print()
        if stage.rows in ("width", "memory") or stage.name in ("key", "value"):
            self._print(self._matrices(stage)[0].lines(self.room))
        elif stage.columns != "width":
            self._pairs(stage)
        elif stage.name == "context":
            self._sum(stage)
        elif stage.factors and stage.shape[-1] <= LARGEST:
            self._products(stage, range(stage.shape[-1]), Labels(()))
        else:
            self._print(self._matrices(stage)[0].lines(self.room, only=[self._place]))

    def say(self, text: str, style: str = "", *more: tuple[str, str], margin: int = MARGIN) -> None:
        """A paragraph, wrapped to the width."""
        paragraph = Text.assemble((text, style), *more)
        for line in self._wrapped(paragraph, self.room + MARGIN - margin):
            self._line(line, margin)

    def _wrapped(self, paragraph: Text, room: int) -> list[Text]:
        lines = list(paragraph.wrap(self.screen, room))
        for line in lines:
            line.rstrip()
        return lines

    def _print(self, *parts: list[Text]) -> None:
        """Parts with an empty line between them."""
        for i, part in enumerate(part for part in parts if part):
            if i:
                self.screen.print()
            for line in part:
                self._line(line)

    @property
    def _place(self) -> int:
        return self.query or 0

    def _head(self, name: str, shape: str) -> None:
        title = Text.assemble((f"{next(self._number):>2} ", "dim"), (name, "bold"), f"  {shape}")
        title.stylize("dim", len(title) - len(shape))
        self.screen.print()
        self.screen.print(title, no_wrap=True, overflow="ellipsis")

    def _title(self, *stages: Stage) -> None:
        shape = " × ".join(f"{size:,}" for size in stages[0].shape[-2:])
        if len(stages[0].shape) == 3:
            heads = stages[0].shape[0]
            shape = f"{heads:,} head{'s' if heads > 1 else ''} × {shape}"
        self._head(", ".join(stage.name for stage in stages), shape)

    def _words(self, stages: Sequence[Stage], room: int) -> list[Text]:
        """The formulas, and what happened."""
        said = [Text(stage.formula, "cyan") for stage in stages if stage.formula]
        said += [Text(sentence) for sentence in dict.fromkeys(s.sentence for s in stages)]
        if self.coloured and stages[0].name == "weights" and self.query is None:
            said.append(Text("The brighter, the more.", "dim"))
        return [line for text in said for line in self._wrapped(text, room)]

    def _tokens(self, tokens: Sequence[str], query: int | None) -> None:
        line = Text()
        for place in _listed(len(tokens)):
            if place is None:
                line.append("…   ", "dim")
                continue
            style = "bold reverse" if place == query else "bold"
            line.append(f"{place}\u00a0", "dim").append(visible(tokens[place]), style).append("   ")
        self._print(self._wrapped(line, self.room))

    def _line(self, line: Text, margin: int = MARGIN) -> None:
        shown = Text.assemble(" " * margin, line)
        if not self.coloured:
            shown.rstrip()
        self.screen.print(shown, no_wrap=True, overflow="ellipsis", crop=True)

    def _matrices(self, stage: Stage, titled: bool = False) -> list[Matrix]:
        """The matrix of the chosen head; of the weights, those of the other heads too."""
        found = self.explanation
        others = [head for head in range(found.heads) if head != found.head]
        several = stage.name == "weights" and others
        return [
            Matrix(
                (stage.shape[-2], stage.shape[-1]),
                Labels(found.labels(stage.rows)),
                Labels(found.labels(stage.columns)),
                partial(self._part, stage, head=head),
                title=stage.name if titled else f"head {head}" if several else "",
                heat=self.coloured and stage.name == "weights",
            )
            for head in [found.head, *(others if several else ())]
        ]

    def _part(
        self, stage: Stage, rows: Sequence[int], columns: Sequence[int], head: int
    ) -> list[list[float]]:
        return stage.of_head(head, self.explanation.heads, rows, columns).tolist()

    def _numbers(self, stage: Stage, columns: Sequence[int]) -> list[float]:
        """Some numbers of the followed token."""
        return self._part(stage, [self._place], columns, self.explanation.head)[0]

    def _terms(self, stage: Stage, row: int, column: int) -> tuple[list[float], list[float]]:
        left, right = stage.terms(row, column, self.explanation.head, self.explanation.heads)
        return left.tolist(), right.tolist()

    def _example(self, stage: Stage, room: int) -> list[Text]:
        """One number of the stage, written out: the first of the second row."""
        row = min(1, stage.shape[-2] - 1)
        if stage.rows == "width" or (stage.factors is None and stage.name != "weights"):
            return []
        found = self.explanation
        about = f"{visible(found.labels(stage.rows)[row])}, number 0"
        if stage.columns != "width":
            pair = (found.labels(stage.rows)[row], found.labels(stage.columns)[0])
            about = " → ".join(map(visible, pair))
        about = fit(about, min(cell_len(about), room // 2), left=True) + ": "
        number = self._part(stage, [row], [0], found.head)[0][0]
        total = f" = {written([number])(number)}"
        narrow = room < 60
        left = room - len(total) - (0 if narrow else cell_len(about))
        made = self._softmax(row, left)
        if stage.factors is not None:
            made = products(*self._terms(stage, row, 0), left)
        first = Text(about, "dim", end="")
        second = Text.assemble(made, (total, "bold"))
        return [first, second] if narrow else [Text.assemble(first, second)]

    def _softmax(self, row: int, room: int) -> str:
        before = self._before_weights()
        scores = self._part(before, [row], range(min(before.shape[-1], 20)), self.explanation.head)
        powers = [f"e^{score:.4f}" for score in scores[0] if math.isfinite(score)]
        whole = f"{powers[0]} / ({' + '.join(powers)})"
        if before.shape[-1] <= 20 and len(whole) <= room:
            return whole
        count = max(1, (room - len(powers[0]) - 9) // (len(powers[0]) + 3))
        return f"{powers[0]} / ({' + '.join(powers[:count])} + …)"

    def _before_weights(self) -> Stage:
        names = [stage.name for stage in self.explanation.stages]
        return self.explanation.stages[names.index("weights") - 1]

    def _keys(self) -> list[int]:
        """The keys to show of the followed query: all, or those with the largest weights."""
        stage = self.explanation.stage("weights")
        count = stage.shape[-1]
        if count <= WHOLE:
            return list(range(count))
        weights = self._numbers(stage, range(count))
        return sorted(sorted(range(count), key=lambda m: -weights[m])[:LARGEST])

    def _pairs(self, stage: Stage) -> None:
        """A line for each key: its dot product, its score, or its weight as a bar."""
        keys = self._keys()
        labels = Labels(self.explanation.labels(stage.columns))
        if stage.factors is not None:
            self._products(stage, keys, labels)
        elif stage.name == "weights":
            self._bars(stage, keys, labels)
        else:
            names = [stage.name for stage in self.explanation.stages]
            before = self.explanation.stages[names.index(stage.name) - 1]
            self._changes(before, stage, keys, labels)
        left = stage.shape[-1] - len(keys)
        if left and stage.name == "weights":
            share = 1 - sum(self._numbers(stage, keys))
            self.say(f"… and {left:,} others, with {share:.4f} of the weight together", "dim")
        elif left:
            self.say(f"… those with the largest weights; {left:,} others", "dim")

    def _products(self, stage: Stage, columns: Sequence[int], labels: Labels) -> None:
        numbers = self._numbers(stage, columns)
        write, width = written(numbers), self._width(columns, labels)
        for column, number in zip(columns, numbers, strict=True):
            total = f" = {write(number)}"
            room = self.room - width - 2 - len(total)
            made = products(*self._terms(stage, self._place, column), room)
            self._labelled(labels(column), width, made, (total, "bold"))

    def _changes(self, before: Stage, stage: Stage, keys: Sequence[int], labels: Labels) -> None:
        """From the numbers of the stage before to those of this one."""
        old, new = self._numbers(before, keys), self._numbers(stage, keys)
        write, width = written([*old, *new]), self._width(keys, labels)
        cells = max(len(write(number)) for number in [*old, *new])
        for key, was, now in zip(keys, old, new, strict=True):
            shown = (fit(write(now), cells), "bold" if math.isfinite(now) else "dim")
            self._labelled(labels(key), width, f"{fit(write(was), cells)} → ", shown)

    def _bars(self, stage: Stage, keys: Sequence[int], labels: Labels) -> None:
        numbers = self._numbers(stage, keys)
        write, width, top = written(numbers), self._width(keys, labels), max(numbers) or 1.0
        cells = max(len(write(number)) for number in numbers)
        room = min(60, self.room - width - 4 - cells)
        for key, number in zip(keys, numbers, strict=True):
            style = shade(number / top)[0] if self.coloured else ""
            drawn = (bar(number / top, room), style)
            self._labelled(labels(key), width, fit(write(number), cells) + "  ", drawn)

    def _sum(self, stage: Stage) -> None:
        """The context as a weighted sum of values."""
        weights, value = self.explanation.stage("weights"), (stage.factors or (stage, stage))[1]
        keys = self._keys()
        labels = Labels(self.explanation.labels(value.rows))
        shares = self._numbers(weights, keys)
        write, width = written(shares), self._width(keys, labels)
        cells = max(len(write(share)) for share in shares)
        columns = corners(value.shape[-1], max(3, (self.room - width - cells - 9) // 9))
        shown = [column for column in columns if column is not None]
        vectors = self._part(value, keys, shown, self.explanation.head)
        total = self._numbers(stage, shown)
        form = written([number for vector in vectors for number in vector])
        wide = max(len(form(n)) for vector in vectors for n in vector)
        wide = max(wide, *(len(written(total)(n)) for n in total))
        for i, (key, share, vector) in enumerate(zip(keys, shares, vectors, strict=True)):
            sign = "+ " if i else "  "
            text = f"{sign}{fit(write(share), cells)} × {_vector(vector, columns, form, wide)}"
            self._labelled(labels(key), width, text, ("", ""))
        if len(keys) < value.shape[-2]:
            self._labelled("…", width, f"+ … {value.shape[-2] - len(keys):,} others", ("", ""))
        text = " " * cells + "   = "
        self._labelled("", width, text, (_vector(total, columns, written(total), wide), "bold"))

    def _width(self, shown: Sequence[int], labels: Labels) -> int:
        return min(12, self.room // 3, max(cell_len(labels(column)) for column in shown))

    def _labelled(self, label: str, width: int, text: str, last: tuple[str, str]) -> None:
        self._line(Text.assemble((fit(label, width), "bold"), "  ", text, last))


def _columns(words: list[Text], numbers: list[Text]) -> list[Text]:
    """Words on the left, numbers on the right."""
    return [
        Text.assemble(word, " " * (WORDS + GAP - word.cell_len), number) if number else word
        for word, number in itertools.zip_longest(words, numbers, fillvalue=Text())
    ]


def _listed(count: int) -> list[int | None]:
    """The places of the tokens that are listed."""
    if count <= MANY:
        return list(range(count))
    return [*range(MANY // 2), None, *range(count - 5, count)]


def _vector(
    numbers: Sequence[float], columns: Sequence[int | None], form: Callable[[float], str], wide: int
) -> str:
    rest = iter(numbers)
    shown = ["…" if column is None else fit(form(next(rest)), wide) for column in columns]
    return "[" + "  ".join(shown) + "]"
