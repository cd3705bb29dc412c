"""Numbers as text: full or abbreviated matrices, bars, and written-out calculations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from heedful.errors import printable
from heedful.explain import Explanation, Formula, Stage
from heedful.views.terminal import COLOURS, fit

FULL, CORNERS = 16, 7  # maximum number of rows or columns shown in full; number shown otherwise
LABEL, GAP = 12, 4  # cells of the longest label; cells between two matrices
BLOCKS = " ▏▎▍▌▋▊▉█"
NARROW = 60  # cells; below this width the label of a number has its own line
POWERS = 20  # maximum number of terms computed of a softmax's sum


@dataclass(frozen=True)
class Labels:
    """Labels of rows or columns: the names, or indices if `names` is empty."""

    names: Sequence[str]

    def __call__(self, index: int) -> str:
        """Return the label of one row or column."""
        return printable(self.names[index]) if self.names else str(index)


def formatter(values: Iterable[float]) -> Callable[[float], str]:
    """Return a function that formats all of these numbers with the same number of decimals.

    >>> [formatter(v)(v[0]) for v in ([0.43, 0.1], [0.9544, 1.495], [12345.678], [1e-5])]
    ['0.43', '0.9544', '12345.68', '1.00e-05']
    """
    finite = [value for value in values if math.isfinite(value)]
    largest = max((abs(value) for value in finite), default=0.0)
    if all(abs(round(value, 2) - value) < 1e-9 for value in finite) and largest < 1e5:
        form = ".2f"
    elif largest >= 1e6 or largest < 1e-3:
        form = ".2e"
    else:
        form = ".4f" if largest < 1000 else ".2f"
    return lambda value: format(value, form)


def corners(count: int, room: int) -> list[int | None]:
    """Return the indices to show where `room` indices fit; None stands for omitted indices.

    >>> corners(3, 4), corners(100, 6), corners(100, 3)
    ([0, 1, 2], [0, 1, 2, None, 98, 99], [0, None, 99])
    """
    if count <= min(room, FULL):
        return list(range(count))
    slots = max(3, min(room, CORNERS))
    last = 2 if slots >= 6 else 1
    return [*range(slots - 1 - last), None, *range(count - last, count)]


def without_gaps(indices: Iterable[int | None]) -> list[int]:
    """Return the indices without the None of a gap."""
    return [index for index in indices if index is not None]


@dataclass(frozen=True)
class Matrix:
    """A matrix as text, with labels and a title; `part(rows, columns)` returns its numbers.

    With `heat`, the background colour of a number encodes its value.
    """

    shape: tuple[int, int]
    rows: Labels
    columns: Labels
    part: Callable[[Sequence[int], Sequence[int]], Sequence[Sequence[float]]]
    title: str = ""
    heat: bool = False

    def lines(self, room: int, only: Sequence[int] | None = None, limit: int = FULL) -> list[Text]:
        """Return lines of equal width, at most `room` cells.

        `only` selects rows. Without `only`, at most `limit` rows are shown, from both ends.
        """
        rows = corners(self.shape[0], limit) if only is None else list(only)
        indices = without_gaps(rows)
        names = {row: self.rows(row) for row in indices}
        label = min(LABEL, max([1, *map(cell_len, names.values())]), max(1, room // 3))
        candidates = without_gaps(corners(self.shape[1], max(3, (room - label) // 4)))
        numbers = dict(zip(indices, self.part(indices, candidates), strict=True))
        form = formatter(value for row in numbers.values() for value in row)
        cells = [len(form(value)) for row in numbers.values() for value in row]
        width = max([*cells, *(min(8, cell_len(self.columns(column))) for column in candidates)])
        columns = corners(self.shape[1], (room - label) // (width + 2))
        positions = {column: i for i, column in enumerate(candidates)}
        top = max((abs(v) for row in numbers.values() for v in row if math.isfinite(v)), default=0)
        output = [self._header(columns, label, width)]
        for row in rows:
            line = Text(fit("" if row is None else names[row], label), "bold", no_wrap=True)
            for column in columns:
                if column is None:
                    line.append(" … ", "dim not bold")
                elif row is None:
                    line.append(f" {fit('⋮', width)} ", "dim not bold")
                else:
                    value = numbers[row][positions[column]]
                    line.append(f" {fit(form(value), width)} ", self._style(value, top))
            output.append(line)
        if self.title:
            title = fit(self.title, output[0].cell_len, left=True)
            output.insert(0, Text(title, "dim", no_wrap=True))
        return output

    def _header(self, columns: list[int | None], label: int, width: int) -> Text:
        line = Text(" " * label, "dim", no_wrap=True)
        for column in columns:
            line.append("   " if column is None else f" {fit(self.columns(column), width)} ")
        return line

    def _style(self, value: float, top: float) -> str:
        if not math.isfinite(value) or (self.heat and value == 0):  # a masked weight is 0
            return "dim not bold"
        if not self.heat:
            return "not bold"
        colour, dark = shade(value / top if top else 0.0)
        return f"not bold {'white' if dark else 'black'} on {colour}"


def shade(share: float) -> tuple[str, bool]:
    """Return the viridis colour of a share from 0 to 1, and whether it is dark.

    >>> shade(0.0), shade(1.0)
    (('#440154', True), ('#fde725', False))
    """
    shares = np.linspace(0, 1, len(COLOURS))
    channels = zip(*(bytes.fromhex(colour[1:]) for colour in COLOURS), strict=True)
    mixed = bytes(round(np.interp(share, shares, channel)) for channel in channels)
    return f"#{mixed.hex()}", share < 0.6


def arrange(blocks: Sequence[Sequence[Text]], room: int) -> list[list[Text]]:
    """Place blocks of lines side by side if they have equal heights and fit into `room` cells."""
    output: list[list[Text]] = []
    used = 0
    for block in blocks:
        width = max(line.cell_len for line in block)
        if output and used + GAP + width <= room and len(block) == len(output[-1]):
            output[-1] = [
                Text.assemble(line, " " * GAP, more)
                for line, more in zip(output[-1], block, strict=True)
            ]
            used += GAP + width
        else:
            output.append(list(block))
            used = width
    return output


def bar(share: float, cells: int) -> str:
    """Return a bar for a share from 0 to 1; `cells` is the length of a full bar.

    >>> bar(1.0, 3), bar(0.5, 3)
    ('███', '█▌')
    """
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    return ("█" * (eighths // 8) + BLOCKS[eighths % 8]).rstrip()


def products(left: Sequence[float], right: Sequence[float], room: int) -> str:
    """Write out a sum of products without terms that are 0 or would be displayed as 0.

    If the sum does not fit, its first terms and its last are written.

    >>> products([0.55, 0.0, 0.87], [0.43, 0.2, 0.15], 40)
    '0.55×0.43 + 0.87×0.15'
    >>> products([1.0] * 9, [0.25] * 9, 40)
    '1.00×0.25 + 1.00×0.25 + … + 1.00×0.25'
    """
    first, second = formatter(left[:99]), formatter(right[:99])
    pairs = [(a, b, first(a), second(b)) for a, b in zip(left, right, strict=True) if a and b]
    terms = [f"{a}×{b}" for _, _, a, b in pairs if float(a) and float(b)]
    if not terms:
        return "…" if pairs else "0"
    full = " + ".join([*terms, *["…"] * (len(terms) < len(pairs))]) if len(terms) < 99 else ""
    if full and len(full) <= room:
        return full
    count, room = 1, room - len(terms[-1]) - len(" + … + ")
    while count < len(terms) - 2 and len(" + ".join(terms[: count + 1])) <= room:
        count += 1
    return " + ".join([*terms[:count], "…", terms[-1]]) if len(terms) > 1 else full


def example(walk: Explanation, stage: Stage, room: int, column: int | None = None) -> list[Text]:
    """Write out a number of the walk's row and head, in lines of `room` cells if possible.

    The default is the first number or, of logits and probabilities, that of the likeliest token.
    """
    is_weights = stage.kind == "weights"
    if stage.rows == "width" or not (stage.factors or stage.number_formula or is_weights):
        return []
    row = walk.row if stage.rows == "tokens" else min(1, stage.shape[-2] - 1)
    column = _first_column(walk, stage, row) if column is None else column
    names = walk.labels(stage.columns)
    name = printable(walk.labels(stage.rows)[row])
    name += f" → {printable(names[column])}" if names else f", number {column}"
    name = fit(name, min(cell_len(name), room // 2), left=True) + ": "
    number = float(stage.of_head(walk.head, walk.heads, [row], [column])[0, 0])
    total = f" = {formatter([number])(number)}"
    narrow = room < NARROW
    remaining = room - len(total) - (0 if narrow else cell_len(name))
    if is_weights:
        calculation = _softmax(_logits(walk, stage, row), column, remaining)
    elif stage.factors is not None:
        calculation = sum_of(walk, stage, row, column, remaining)
    else:
        calculation = fill_formula(stage.formula_of(row, column, walk.head, walk.heads))
    first, second = Text(name, "dim", end=""), Text.assemble(calculation, (total, "bold"))
    return [first, second] if narrow else [Text.assemble(first, second)]


def sum_of(walk: Explanation, stage: Stage, row: int, column: int, room: int) -> str:
    """Write out a number of the walk's head as a sum of products and a bias."""
    left, right, bias = stage.terms(row, column, walk.head, walk.heads)
    last = "" if bias is None else f" + {_bracketed(bias)}"
    return products(left.tolist(), right.tolist(), room - len(last)) + last


def _first_column(walk: Explanation, stage: Stage, row: int) -> int:
    if stage.kind == "joined":  # the first column of the explanation's head
        return walk.head * stage.shape[-1] // walk.heads
    if stage.columns == "vocabulary":
        answer = walk.answer(row)
        return answer.likeliest[0].id if answer else 0
    scores = _logits(walk, stage, row) if stage.kind == "weights" else []
    return next((i for i, score in enumerate(scores) if math.isfinite(score)), 0)


def _logits(walk: Explanation, weights: Stage, row: int) -> list[float]:
    """Return the numbers of which a row of weights is the softmax."""
    [stage] = weights.sources
    return stage.of_head(walk.head, walk.heads, [row], range(stage.shape[-1]))[0].tolist()


def _softmax(logits: Sequence[float], column: int, room: int) -> str:
    power = f"e^{logits[column]:.4f}"
    powers = [f"e^{score:.4f}" for score in logits if math.isfinite(score)]
    full = f"{power} / ({' + '.join(powers)})" if powers else "0"
    if len(powers) <= POWERS and len(full) <= room:
        return full
    count = max(1, (room - len(power) - 9) // (len(power) + 3))
    return f"{power} / ({' + '.join(powers[:count])} + …)"


def fill_formula(template: Formula) -> str:
    """Fill the numbers into a formula; put a negative number after an operator in brackets.

    >>> fill_formula(Formula("({} - {}) / {}", (0.5, -0.25, 2.0)))
    '(0.50 - (-0.25)) / 2.00'
    """
    output = ""
    for text, number in zip(template.text.split("{}"), (*template.numbers, None), strict=True):
        output += text.replace("{{", "{").replace("}}", "}")
        if number is not None:
            after_sign = output.rstrip().endswith(("+", "-", "×", "/"))
            output += _bracketed(number) if after_sign else _number_text(number)
    return output


def _number_text(number: float) -> str:
    return str(number) if isinstance(number, int) else formatter([number])(number)


def _bracketed(number: float) -> str:
    text = _number_text(number)
    return f"({text})" if text.startswith("-") else text
