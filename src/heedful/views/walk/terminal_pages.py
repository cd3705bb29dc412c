"""The walk in a terminal: each step's formula, sentence and numbers.

Large matrices are abbreviated, and no line is wider than the terminal. Colours only repeat
information that the text contains.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from heedful.errors import ArgumentError, printable
from heedful.explain import Answer, Explanation, Section, Stage
from heedful.views.model_summary import shape_text
from heedful.views.number_format import (
    FULL,
    GAP,
    Labels,
    Matrix,
    arrange,
    bar,
    example,
    formatter,
    shade,
)
from heedful.views.terminal import fit, flow, table

MARGIN, WIDEST = 3, 130
WIDE = 100  # cells; from this width on, matrices of one step stand side by side
MANY = 40  # maximum number of tokens in a list
LONGEST, BARS = 24, 40  # maximum cells of a label, and of a bar
ROWS, TABLE = 7, 5  # rows shown of activations and of weight matrices in the walk of a model
FEW = 3  # maximum number of answers that are shown in full


def has_query_rows(stage: Stage) -> bool:
    """Whether a stage has a row per query; keys and values have a row per key."""
    return stage.rows == "tokens" and stage.kind not in ("key", "value")


class Page:
    """Prints the steps of an explanation on a console.

    `step` is the name of the only stages to print; None prints all. Only the explained head is
    shown; the walk of a variant also has the weights of all other heads.
    """

    most = MANY  # tokens in a list
    notes: int | None = None  # number of notes below the title; None: all

    def __init__(self, screen: Console, explanation: Explanation, step: str | None = None) -> None:
        names = dict.fromkeys(stage.name for stage in explanation.stages)
        if step is not None and step not in names:
            raise ArgumentError(f"no step {step!r}", expected=f"one of {', '.join(names)}")
        self.screen, self.explanation, self.step = screen, explanation, step
        self.coloured = screen.color_system is not None and not screen.no_color
        self.room = max(20, min(screen.width, WIDEST) - MARGIN)
        self.is_model = len(explanation.sections) > 1
        self.section = explanation.sections[0]
        self._number: Iterator[int | str] = itertools.count(1)
        if step is not None:
            self._number = itertools.repeat("")

    def print_walk(self) -> None:
        """Print the steps of all sections and the answers, or the stages named `step`."""
        self.print_header()
        for section in self.explanation.sections:
            stages = [stage for stage in section.stages if self.step in (None, stage.name)]
            if stages:
                self.begin_section(section)
            steps = itertools.groupby(enumerate(stages), lambda pair: pair[1].step or pair[0])
            for _, step in steps:
                self.print_stages(*(stage for _, stage in step))
        if self.step is None:
            self.print_answers(self.explanation.answers)

    def print_header(self) -> None:
        """Print the title, the chosen layer and head, the notes, and a variant's tokens."""
        walk = self.explanation
        name, _, subtitle = walk.title.partition(": ")
        self.screen.print()
        parts = ((f"· {name}", "bold"), (f"  {subtitle}", "dim"))
        self.write("heedful explain ", "bold", *parts, margin=0)
        chosen = {}
        if self.is_model or walk.query is not None:
            chosen["--query"] = f"token {printable(walk.tokens[walk.row])} @{walk.row}"
        if walk.layers > 1:
            chosen["--layer"] = f"layer {walk.layer} of {walk.layers}"
        if walk.heads > 1:
            chosen["--head"] = f"head {walk.head} of {walk.heads}"
        if chosen:
            text = f"{', '.join(chosen.values())}: {', '.join(chosen)}."
            self.write(text[0].upper() + text[1:], margin=0)
        for note in walk.notes[: self.notes] if self.step is None else ():
            self.write(note, "dim", margin=0)
        if self.is_model or self.step is not None:
            return
        for name, tokens in (("tokens", walk.tokens), ("tokens of the memory", walk.memory)):
            if tokens:
                self._print_head(name, f"{len(tokens):,}")
                indices = _listed(len(tokens), self.most)
                items = ("… " if i is None else f"{i} {printable(tokens[i])} " for i in indices)
                for line in flow(items, self.room).splitlines():
                    self._print_line(Text(line.rstrip(), "bold"))

    def begin_section(self, section: Section) -> None:
        """Begin a section, with a heading in the walk of a model."""
        self.section = section
        if self.is_model:
            self.screen.print()
            self.write(f"── {section.title} ──", "bold cyan", margin=0)

    def print_stages(self, *stages: Stage) -> None:
        """Print the stages of one step side by side, for all tokens."""
        if self._print_brief(stages[0]):
            return
        self._print_title(*stages)
        room = self.room
        if room >= WIDE:
            room = (room - (len(stages) - 1) * GAP) // len(stages)
        blocks = [
            matrix.lines(room, limit=self._row_limit(stage))
            for stage in stages
            for matrix in self._matrices(stage, titled=len(stages) > 1)
        ]
        words = self._words(stages, self.room)
        self._print(words, *arrange(blocks, self.room), self._example(stages[0], self.room))

    def print_answers(self, answers: Sequence[Answer]) -> None:
        """Print the likeliest tokens of each answer, or why there is no answer."""
        walk = self.explanation
        if len(answers) > FEW:
            self._print_head(f"likeliest {walk.predicted} each token", f"{len(answers):,}")
            for i in _listed(len(answers), self.most):
                if i is None:
                    self._print_line(Text(f"     {fit('…', 8)}", "bold"))
                    continue
                position, likely = answers[i]
                token = fit(printable(walk.tokens[position]), 8)
                words = (
                    f"{printable(name)} {100 * share:.1f} %" for name, _, share in likely[:FEW]
                )
                text = (f"{position:>4} ", "dim"), (token, "bold"), "  ", "   ".join(words)
                self._print_line(Text.assemble(*text))
            answers = answers[-1:] if self.most == MANY else ()
        for answer in answers:
            token = printable(walk.tokens[answer.position])
            title = f"likeliest {walk.predicted} {token} @{answer.position}"
            self._print_head(title, f"{len(answer.likeliest)} of {len(walk.vocabulary):,}")
            labels = Labels([candidate.token for candidate in answer.likeliest])
            self.print_bars([candidate.probability for candidate in answer.likeliest], labels)
        if walk.missing:
            self.screen.print()
            self.write(walk.missing)

    def write(
        self, text: str, style: str = "", *runs: tuple[str, str], margin: int = MARGIN
    ) -> None:
        """Print a paragraph, wrapped to the width."""
        paragraph = Text.assemble((text, style), *runs)
        for line in self._wrapped(paragraph, self.room + MARGIN - margin):
            self._print_line(line, margin)

    def _print_brief(self, stage: Stage) -> bool:
        """Print token ids as a list, or a block as one line; return False for any other stage."""
        if stage.columns == "id":
            self._print_head("tokens and their ids", f"{stage.shape[0]:,}")
            self.print_ids(stage)
        elif self.section.kind == "blocks":
            shape = " × ".join(f"{size:,}" for size in stage.shape)
            text = Text.assemble((stage.name, "bold"), (f"  {shape}", "dim"), f"  {stage.sentence}")
            number = f"{next(self._number):>2} "
            for line in self._wrapped(text, self.room):
                self._print_line(Text.assemble((number, "dim"), line), 0)
                number = "   "
        return stage.columns == "id" or self.section.kind == "blocks"

    def print_ids(self, stage: Stage) -> None:
        """Print tokens and their ids as a table, as `heedful tokenize` does."""
        walk = self.explanation
        tokens = walk.memory if stage.rows == "memory" else walk.tokens
        rows = [
            ("", "…", "") if i is None else (i, printable(tokens[i]), int(stage.part([i], [0])))
            for i in _listed(len(tokens), self.most)
        ]
        columns = table(["position", "piece", "id"], rows, numbers=[0, 2])
        self.screen.print(Padding.indent(columns, MARGIN))

    def _row_limit(self, stage: Stage) -> int:
        """Return the maximum number of rows to show of a stage."""
        if not self.is_model or stage.kind == "weights" or self.step is not None:
            return FULL
        return TABLE if stage.rows == "width" else ROWS

    def _wrapped(self, paragraph: Text, room: int) -> list[Text]:
        lines = list(paragraph.wrap(self.screen, room))
        for line in lines:
            line.rstrip()
        return lines

    def _print(self, *parts: list[Text]) -> None:
        """Print the parts, with an empty line between two of them."""
        for i, part in enumerate(part for part in parts if part):
            if i:
                self.screen.print()
            for line in part:
                self._print_line(line)

    def _print_head(self, name: str, shape: str) -> None:
        number = f"{next(self._number):>2} "
        self.screen.print()
        title = Text.assemble((number, "dim"), (name, "bold"), (f"  {shape}", "dim"))
        self.screen.print(title, no_wrap=True, overflow="ellipsis")

    def _print_title(self, *stages: Stage) -> None:
        shapes = list(dict.fromkeys(_shape(stage) for stage in stages))
        names = ", ".join(stage.name for stage in stages)
        self._print_head(names, shapes[0] if len(shapes) == 1 else "; ".join(map(_shape, stages)))

    def _words(self, stages: Sequence[Stage], room: int) -> list[Text]:
        """Return the formulas, the chains of shapes, and the sentences, without repetitions."""
        texts = [Text(stage.formula, "cyan") for stage in stages if stage.formula]
        chains = dict.fromkeys(stage.chain for stage in stages if stage.chain)
        texts += [Text(" → ".join(map(shape_text, chain))) for chain in chains]
        sentences = dict.fromkeys(stage.sentence for stage in stages)
        texts += [Text(sentence) for sentence in sentences if sentence]
        if self.coloured and stages[0].kind == "weights" and self.explanation.query is None:
            texts.append(Text("Brighter cells are larger weights.", "dim"))
        return [line for text in texts for line in self._wrapped(text, room)]

    def _print_line(self, line: Text, margin: int = MARGIN) -> None:
        padded = Text.assemble(" " * margin, line)
        if not self.coloured:
            padded.rstrip()
        self.screen.print(padded, no_wrap=True, overflow="ellipsis", crop=True)

    def _matrices(self, stage: Stage, titled: bool = False) -> list[Matrix]:
        """Return the matrix of the explanation's head; for a variant's weights, of all heads."""
        walk = self.explanation
        others = [head for head in range(walk.heads) if head != walk.head]
        several = stage.kind == "weights" and others and not self.is_model
        return [
            Matrix(
                (stage.shape[-2], stage.shape[-1]),
                Labels(walk.labels(stage.rows)),
                Labels(walk.labels(stage.columns)),
                partial(self._part, stage, head=head),
                title=stage.name if titled else f"head {head}" if several else "",
                heat=self.coloured and stage.kind == "weights",
            )
            for head in [walk.head, *(others if several else ())]
        ]

    def _part(
        self, stage: Stage, rows: Sequence[int], columns: Sequence[int], head: int
    ) -> list[list[float]]:
        return stage.of_head(head, self.explanation.heads, rows, columns).tolist()

    def _example(self, stage: Stage, room: int, column: int | None = None) -> list[Text]:
        lines = example(self.explanation, stage, room, column)
        return [part for line in lines for part in self._wrapped(line, room)]

    def print_bars(self, numbers: Sequence[float], labels: Labels) -> None:
        """Print a number and a bar per line; the largest number has the longest bar."""
        names = [labels(i) for i in range(len(numbers))]
        write, width, top = formatter(numbers), self._width(names), max(numbers) or 1.0
        cells = max(len(write(number)) for number in numbers)
        room = min(BARS, self.room - width - 4 - cells)
        for name, number in zip(names, numbers, strict=True):
            style = shade(number / top)[0] if self.coloured else ""
            bar_text = (bar(number / top, room), style)
            self._print_item(name, width, fit(write(number), cells) + "  ", bar_text)

    def _width(self, labels: Sequence[str]) -> int:
        return min(LONGEST, self.room // 3, max(map(cell_len, labels)))

    def _print_item(self, label: str, width: int, text: str, last: tuple[str, str]) -> None:
        self._print_line(Text.assemble((fit(label, width), "bold"), "  ", text, last))


def _listed(count: int, most: int) -> list[int | None]:
    """Return the indices to list of `count` tokens; None stands for those left out."""
    if count <= most:
        return list(range(count))
    return [*range(most // 2), None, *range(count - most // 6, count)]


def _shape(stage: Stage) -> str:
    """Return the shape of a stage as text: `4 heads × 6 × 8`, or `6 × 128`."""
    shape = " × ".join(f"{size:,}" for size in stage.shape[-2:])
    if len(stage.shape) < 3:
        return shape
    return f"{stage.shape[0]:,} head{'s' if stage.shape[0] > 1 else ''} × {shape}"
