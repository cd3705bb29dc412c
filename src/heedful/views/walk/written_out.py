"""One number of a step written out as the sum, or the formula, that it is."""

from __future__ import annotations

import math

from rich.cells import cell_len
from rich.text import Text

from heedful.explain import Explanation, Formula, Section, Stage
from heedful.views.numbers import products, visible, written
from heedful.views.terminal import fit

NARROW = 60  # cells: below, the number's name has a line of its own
POWERS = 20  # terms of a softmax that are looked at


class WrittenOut:
    """Numbers of one section of an explanation, of the head that it looks at."""

    def __init__(self, explanation: Explanation, section: Section) -> None:
        self.explanation, self.section = explanation, section

    def example(self, stage: Stage, row: int, room: int) -> list[Text]:
        """The first number of a row, in lines of so many cells where that is possible.

        Of the vocabulary it is the likeliest token of the last answer.
        """
        is_weights = stage.kind == "weights"
        if stage.rows == "width" or not (stage.factors or stage.how or is_weights):
            return []
        found = self.explanation
        column = 0
        if stage.kind == "joined":  # the head whose context was shown has its numbers here
            column = found.head * stage.shape[-1] // found.heads
        if stage.columns == "vocabulary":
            answer = found.answers[-1] if found.answers else found.answer(row)
            column = answer.likeliest[0].id if answer else 0
            row = answer.place if answer else row
        about = f"{visible(found.labels(stage.rows)[row])}, number {column}"
        if stage.columns != "width":
            pair = (found.labels(stage.rows)[row], found.labels(stage.columns)[column])
            about = " → ".join(map(visible, pair))
        about = fit(about, min(cell_len(about), room // 2), left=True) + ": "
        number = float(stage.of_head(found.head, found.heads, [row], [column])[0, 0])
        total = f" = {written([number])(number)}"
        narrow = room < NARROW
        left = room - len(total) - (0 if narrow else cell_len(about))
        if is_weights:
            made = self._softmax(stage, row, left)
        elif stage.factors is not None:
            made = self.sum_of(stage, row, column, left)
        else:
            made = formula(stage.formula_of(row, column, found.head, found.heads))
        first, second = Text(about, "dim", end=""), Text.assemble(made, (total, "bold"))
        return [first, second] if narrow else [Text.assemble(first, second)]

    def sum_of(self, stage: Stage, row: int, column: int, room: int) -> str:
        """The products whose sum a number is, and the bias that is added to them."""
        left, right, more = stage.terms(row, column, self.explanation.head, self.explanation.heads)
        last = "" if more is None else f" + {_bracketed(more)}"
        return products(left.tolist(), right.tolist(), room - len(last)) + last

    def _softmax(self, weights: Stage, row: int, room: int) -> str:
        before, found = self.section.before(weights), self.explanation
        columns = range(min(before.shape[-1], POWERS))
        scores = before.of_head(found.head, found.heads, [row], columns)[0].tolist()
        powers = [f"e^{score:.4f}" for score in scores if math.isfinite(score)]
        if not powers or not math.isfinite(scores[0]):  # a window that the first key is out of
            return "0 / (…)"
        whole = f"{powers[0]} / ({' + '.join(powers)})"
        if before.shape[-1] <= POWERS and len(whole) <= room:
            return whole
        count = max(1, (room - len(powers[0]) - 9) // (len(powers[0]) + 3))
        return f"{powers[0]} / ({' + '.join(powers[:count])} + …)"


def formula(found: Formula) -> str:
    """A formula with its numbers; a negative one after a sign stands in brackets.

    >>> formula(Formula("({} - {}) / {}", (0.5, -0.25, 2.0)))
    '(0.50 - (-0.25)) / 2.00'
    """
    made = ""
    for text, number in zip(found.text.split("{}"), (*found.numbers, None), strict=True):
        made += text.replace("{{", "{").replace("}}", "}")
        if number is not None:
            after_sign = made.rstrip().endswith(("+", "-", "×", "/"))
            made += _bracketed(number) if after_sign else _written(number)
    return made


def _written(number: float) -> str:
    return str(number) if isinstance(number, int) else written([number])(number)


def _bracketed(number: float) -> str:
    text = _written(number)
    return f"({text})" if text.startswith("-") else text
