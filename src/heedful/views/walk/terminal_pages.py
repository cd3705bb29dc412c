"""The steps from a text to a word as a page in a terminal: what happened, the formula, the numbers.

Small matrices stand there whole, large ones at their corners. No line is longer than the
terminal is wide, and without colours the page says the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from heedful.explain import Answer, Explanation, Section, Stage
from heedful.views.model_summary import written as as_torch
from heedful.views.number_format import (
    GAP,
    WHOLE,
    Labels,
    Matrix,
    WrittenOut,
    bar,
    beside,
    shade,
    visible,
    written,
)
from heedful.views.terminal import fit

MARGIN, WIDEST = 3, 130
WIDE = 100  # from so many cells on, matrices of one step stand side by side
MANY, BETWEEN = 40, 3  # tokens that are listed, and the cells between two of them
ROWS, TABLE = 7, 5  # rows of vectors, and of weights, where a whole model is shown
FEW = 3  # answers that are given with all their words


def show(screen: Console, explanation: Explanation) -> None:
    """Print every step, with the numbers of all tokens."""
    page = Page(screen, explanation)
    page.top()
    for section in explanation.sections:
        page.open(section)
        for stages in together(section.stages):
            page.stage(*stages)
    page.answers(explanation.answers)


def together(stages: Sequence[Stage]) -> Iterator[list[Stage]]:
    """The stages in order, those of one step together."""
    steps = itertools.groupby(enumerate(stages), lambda one: one[1].step or one[0])
    return ([stage for _, stage in step] for _, step in steps)


def asks(stage: Stage) -> bool:
    """Whether a stage has a row for the token that is followed, which keys and values have not."""
    return stage.rows == "tokens" and stage.kind not in ("key", "value")


class Page:
    """What is printed of an explanation on a console, step after step.

    `query` is the place of the token that is followed. Of several heads the chosen one is shown,
    and the weights of the others where one layer alone is shown.
    """

    def __init__(self, screen: Console, explanation: Explanation, query: int | None = None) -> None:
        self.screen, self.explanation, self.query = screen, explanation, query
        self.coloured = screen.color_system is not None and not screen.no_color
        self.room = max(20, min(screen.width, WIDEST) - MARGIN)
        self.whole_model = len(explanation.sections) > 1
        self.section = explanation.sections[0]
        self.written_out = WrittenOut(explanation, self.section)
        self._number = itertools.count(1)

    def top(self) -> None:
        """What is shown, where its numbers come from, and the tokens with their places."""
        found = self.explanation
        name, _, says = found.title.partition(": ")
        self.screen.print()
        self.say("heedful explain ", "bold", (f"· {name}", "bold"), (f"  {says}", "dim"), margin=0)
        chosen = []
        if found.layers > 1:
            chosen.append(
                f"Layer {found.layer} of {found.layers} is opened; --layer opens another."
            )
        if found.heads > 1:
            chosen.append(f"Head {found.head} of {found.heads}; --head shows another.")
        if chosen:
            self.say(" ".join(chosen), margin=0)
        for note in found.notes:
            self.say(note, "dim", margin=0)
        if self.whole_model:
            return
        for name, tokens in (("tokens", found.tokens), ("tokens of the memory", found.memory)):
            if tokens:
                self._head(name, f"{len(tokens):,}")
                self._tokens(tokens, self.query if tokens is found.tokens else None)

    def open(self, section: Section) -> None:
        """The heading of a section, where there are several."""
        self.section = section
        self.written_out = WrittenOut(self.explanation, section)
        if self.whole_model:
            self.screen.print()
            self.say(f"── {section.title} ──", "bold cyan", margin=0)

    def stage(self, *stages: Stage) -> None:
        """One step, or several that belong together, with all tokens."""
        if self._said_in_short(stages[0]):
            return
        self._title(*stages)
        several = len(stages) > 1
        room = self.room
        if several and self.room >= WIDE:
            room = (self.room - (len(stages) - 1) * GAP) // len(stages)
        blocks = [
            matrix.lines(room, high=self._high(stage))
            for stage in stages
            for matrix in self._matrices(stage, titled=several)
        ]
        words = self._words(stages, self.room)
        self._print(words, *beside(blocks, self.room), self._example(stages[0], self.room))

    def answers(self, answers: Sequence[Answer]) -> None:
        """The likeliest tokens at one place or several, or why there are none."""
        found = self.explanation
        if len(answers) > FEW:
            self._head(f"likeliest {found.asked} each token", f"{len(answers):,}")
            for i in _listed(len(answers)):
                self._line(Text("…", "dim") if i is None else self._in_short(answers[i]))
            answers = answers[-1:]
        for answer in answers:
            token = visible(found.tokens[answer.place])
            where = f"{found.asked} {token} @{answer.place}"
            self._head(
                f"likeliest {where}", f"{len(answer.likeliest)} of {len(found.vocabulary):,}"
            )
            labels = Labels([one.token for one in answer.likeliest])
            self._bars([one.probability for one in answer.likeliest], labels)
            self.say("The longest bar is the largest probability.", "dim")
        if found.missing:
            self.screen.print()
            self.say(found.missing)

    def say(self, text: str, style: str = "", *more: tuple[str, str], margin: int = MARGIN) -> None:
        """A paragraph, wrapped to the width."""
        paragraph = Text.assemble((text, style), *more)
        for line in self._wrapped(paragraph, self.room + MARGIN - margin):
            self._line(line, margin)

    def _said_in_short(self, stage: Stage) -> bool:
        """A step of which a list or a line is enough: the ids, and blocks that are not opened."""
        if stage.columns == "id":
            self._head("tokens and their ids", f"{stage.shape[0]:,}")
            places = [place for place in _listed(stage.shape[0]) if place is not None]
            ids = dict(zip(places, stage.part(places, [0])[:, 0].tolist(), strict=True))
            query = self.query if stage.rows == "tokens" else None
            self._tokens(self.explanation.labels(stage.rows), query, ids)
        elif self.section.kind == "blocks":
            shape = " × ".join(f"{size:,}" for size in stage.shape)
            said = Text.assemble((stage.name, "bold"), (f"  {shape}", "dim"), f"  {stage.sentence}")
            number = f"{next(self._number):>2} "
            for i, line in enumerate(self._wrapped(said, self.room)):
                self._line(Text.assemble((number if not i else "   ", "dim"), line), 0)
        return stage.columns == "id" or self.section.kind == "blocks"

    def _in_short(self, answer: Answer) -> Text:
        """A place, its token, and the three likeliest."""
        token = visible(self.explanation.tokens[answer.place])
        words = [
            f"{visible(one.token)} {100 * one.probability:.1f} %" for one in answer.likeliest[:FEW]
        ]
        return Text.assemble(
            (f"{answer.place:>4} ", "dim"), (fit(token, 8), "bold"), "  ", "   ".join(words)
        )

    def _high(self, stage: Stage) -> int:
        """How many rows are shown at the most."""
        if not self.whole_model or stage.kind == "weights":
            return WHOLE
        return TABLE if stage.rows == "width" else ROWS

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
        number = f"{next(self._number):>2} "
        self.screen.print()
        title = Text.assemble((number, "dim"), (name, "bold"), (f"  {shape}", "dim"))
        self.screen.print(title, no_wrap=True, overflow="ellipsis")

    def _title(self, *stages: Stage) -> None:
        shapes = list(dict.fromkeys(_shape(stage) for stage in stages))
        names = ", ".join(stage.name for stage in stages)
        self._head(names, shapes[0] if len(shapes) == 1 else "; ".join(map(_shape, stages)))

    def _words(self, stages: Sequence[Stage], room: int) -> list[Text]:
        """The formulas, the shapes on the way, and what happened."""
        said = [Text(stage.formula, "cyan") for stage in stages if stage.formula]
        chains = dict.fromkeys(stage.chain for stage in stages if stage.chain)
        said += [Text(" → ".join(as_torch(shape) for shape in chain)) for chain in chains]
        said += [
            Text(sentence) for sentence in dict.fromkeys(s.sentence for s in stages) if sentence
        ]
        if self.coloured and stages[0].kind == "weights" and self.query is None:
            said.append(Text("The brighter, the more.", "dim"))
        return [line for text in said for line in self._wrapped(text, room)]

    def _tokens(
        self, tokens: Sequence[str], query: int | None, ids: dict[int, int] | None = None
    ) -> None:
        lines = [Text()]
        for place in _listed(len(tokens)):
            one = Text("…", "dim")
            if place is not None:
                style = "bold reverse" if place == query else "bold"
                one = Text.assemble((f"{place} ", "dim"), (visible(tokens[place]), style))
                one.append(f" {ids[place]}" if ids else "")
            gap = " " * BETWEEN if lines[-1] else ""
            if lines[-1].cell_len + len(gap) + one.cell_len > self.room and lines[-1]:
                lines.append(Text())
                gap = ""
            lines[-1] = Text.assemble(lines[-1], gap, one)
        self._print([part for line in lines for part in self._wrapped(line, self.room)])

    def _line(self, line: Text, margin: int = MARGIN) -> None:
        shown = Text.assemble(" " * margin, line)
        if not self.coloured:
            shown.rstrip()
        self.screen.print(shown, no_wrap=True, overflow="ellipsis", crop=True)

    def _matrices(self, stage: Stage, titled: bool = False) -> list[Matrix]:
        """The matrix of the chosen head; of a single layer's weights, those of other heads too."""
        found = self.explanation
        others = [head for head in range(found.heads) if head != found.head]
        several = stage.kind == "weights" and others and not self.whole_model
        return [
            Matrix(
                (stage.shape[-2], stage.shape[-1]),
                Labels(found.labels(stage.rows)),
                Labels(found.labels(stage.columns)),
                partial(self._part, stage, head=head),
                title=stage.name if titled else f"head {head}" if several else "",
                heat=self.coloured and stage.kind == "weights",
            )
            for head in [found.head, *(others if several else ())]
        ]

    def _part(
        self, stage: Stage, rows: Sequence[int], columns: Sequence[int], head: int
    ) -> list[list[float]]:
        return stage.of_head(head, self.explanation.heads, rows, columns).tolist()

    def _example(self, stage: Stage, room: int) -> list[Text]:
        """One number of the stage, written out."""
        row = min(1, stage.shape[-2] - 1) if self.query is None else self._place
        lines = self.written_out.example(stage, row, room)
        return [part for line in lines for part in self._wrapped(line, room)]

    def _bars(self, numbers: Sequence[float], labels: Labels) -> None:
        """A bar for each of some shares, the longest for the largest."""
        names = [labels(i) for i in range(len(numbers))]
        write, width, top = written(numbers), self._width(names), max(numbers) or 1.0
        cells = max(len(write(number)) for number in numbers)
        room = min(60, self.room - width - 4 - cells)
        for name, number in zip(names, numbers, strict=True):
            style = shade(number / top)[0] if self.coloured else ""
            drawn = (bar(number / top, room), style)
            self._labelled(name, width, fit(write(number), cells) + "  ", drawn)

    def _width(self, labels: Sequence[str]) -> int:
        return min(12, self.room // 3, max(map(cell_len, labels)))

    def _labelled(self, label: str, width: int, text: str, last: tuple[str, str]) -> None:
        self._line(Text.assemble((fit(label, width), "bold"), "  ", text, last))


def _listed(count: int) -> list[int | None]:
    """The places of the tokens that are listed."""
    if count <= MANY:
        return list(range(count))
    return [*range(MANY // 2), None, *range(count - 5, count)]


def _shape(stage: Stage) -> str:
    """`4 heads × 6 × 8`, or `6 × 128`."""
    shape = " × ".join(f"{size:,}" for size in stage.shape[-2:])
    if len(stage.shape) < 3:
        return shape
    return f"{stage.shape[0]:,} head{'s' if stage.shape[0] > 1 else ''} × {shape}"
