"""Numbers as text: matrices, whole or at their corners, and one number as the sum that it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from heedful.explain import Explanation, Formula, Section, Stage
from heedful.views.terminal import COLOURS, fit

WHOLE, CORNERS = 16, 7  # rows or columns that are shown whole; how many of larger ones
LABEL, GAP = 12, 4  # cells of the longest label; between two matrices
JOINERS = "\u200c\u200d"  # not printable alone, but parts of Persian words and of emoji
BLOCKS = " ▏▎▍▌▋▊▉█"
NARROW = 60  # cells: below, the number's name has a line of its own
POWERS = 20  # terms of a softmax that are looked at


@dataclass(frozen=True)
class Labels:
    """What stands along rows or columns: names, or numbers from 0 where there are none."""

    names: Sequence[str]

    def __call__(self, index: int) -> str:
        """The label of one row or column."""
        return visible(self.names[index]) if self.names else str(index)


def visible(token: str) -> str:
    """A token with nothing in it that moves the cursor, or that cannot be seen.

    >>> visible("step"), visible("a\\x1b[1mb"), visible("\\u202e")
    ('step', 'a<1b>[1mb', '<202e>')
    """
    return "".join(
        char if char.isprintable() or (char in JOINERS and len(token) > 1) else f"<{ord(char):x}>"
        for char in token
    )


def written(values: Iterable[float]) -> Callable[[float], str]:
    """How to write numbers that stand together: with as few digits as tell them apart.

    >>> [written(v)(v[0]) for v in ([0.43, 0.1], [0.9544, 1.495], [12345.678], [1e-5])]
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
    """The indices to show where there is room for so many; None stands for those left out.

    >>> corners(3, 4), corners(100, 6), corners(100, 3)
    ([0, 1, 2], [0, 1, 2, None, 98, 99], [0, None, 99])
    """
    if count <= min(room, WHOLE):
        return list(range(count))
    slots = max(3, min(room, CORNERS))
    last = 2 if slots >= 6 else 1
    return [*range(slots - 1 - last), None, *range(count - last, count)]


def some(indices: Iterable[int | None]) -> list[int]:
    """Those that are shown."""
    return [index for index in indices if index is not None]


@dataclass(frozen=True)
class Matrix:
    """Rows and columns with labels; `part(rows, columns)` gives the numbers, `title` stands above.

    With `heat`, each number stands on the colour of its size.
    """

    shape: tuple[int, int]
    rows: Labels
    columns: Labels
    part: Callable[[Sequence[int], Sequence[int]], Sequence[Sequence[float]]]
    title: str = ""
    heat: bool = False

    def lines(self, room: int, only: Sequence[int] | None = None, high: int = WHOLE) -> list[Text]:
        """The matrix in lines of at most `room` cells, all equally wide; or only some rows.

        Of more than `high` rows the first ones and the last are shown.
        """
        rows = corners(self.shape[0], high) if only is None else list(only)
        names = {row: self.rows(row) for row in some(rows)}
        label = min(LABEL, max([1, *map(cell_len, names.values())]), max(1, room // 3))
        tried = corners(self.shape[1], max(3, (room - label) // 4))
        numbers = dict(zip(some(rows), self.part(some(rows), some(tried)), strict=True))
        write = written(value for row in numbers.values() for value in row)
        width = self._width(write, numbers.values(), some(tried))
        columns = corners(self.shape[1], (room - label) // (width + 2))
        at = {column: i for i, column in enumerate(some(tried))}
        top = max((abs(v) for row in numbers.values() for v in row if math.isfinite(v)), default=0)
        made = [self._header(columns, label, width)]
        for row in rows:
            line = Text(fit("" if row is None else names[row], label), "bold", no_wrap=True)
            for column in columns:
                if row is None or column is None:
                    gap = "⋮" if row is None and column is not None else "…"
                    line.append(_gap(column, width, gap), "dim not bold")
                else:
                    value = numbers[row][at[column]]
                    line.append(f" {fit(write(value), width)} ", self._style(value, top))
            made.append(line)
        if self.title:
            made.insert(0, Text(fit(self.title, made[0].cell_len, left=True), "dim", no_wrap=True))
        return made

    def _width(self, write: Callable, rows: Iterable[Sequence[float]], shown: list[int]) -> int:
        numbers = [len(write(value)) for row in rows for value in row]
        return max([*numbers, *(min(8, cell_len(self.columns(column))) for column in shown)])

    def _header(self, columns: list[int | None], label: int, width: int) -> Text:
        line = Text(" " * label, "dim", no_wrap=True)
        for column in columns:
            name = "" if column is None else self.columns(column)
            line.append(_gap(None, 1, " ") if column is None else f" {fit(name, width)} ")
        return line

    def _style(self, value: float, top: float) -> str:
        if not math.isfinite(value):
            return "dim not bold"
        if not self.heat:
            return "not bold"
        if value == 0:  # behind the mask
            return "dim not bold"
        colour, dark = shade(value / top if top else 0.0)
        return f"not bold {'white' if dark else 'black'} on {colour}"


def _gap(column: int | None, width: int, sign: str) -> str:
    return f" {sign} " if column is None else " " + fit(sign, width) + " "


def shade(share: float) -> tuple[str, bool]:
    """The colour (viridis) of a share from 0 to 1, and whether it is dark.

    >>> shade(0.0), shade(1.0)
    (('#440154', True), ('#fde725', False))
    """
    place = max(0.0, min(1.0, share)) * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    mixed = [
        round(a + (b - a) * (place - low))
        for a, b in zip(_rgb(COLOURS[low]), _rgb(COLOURS[low + 1]), strict=True)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in mixed), share < 0.6


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def beside(blocks: Sequence[Sequence[Text]], room: int) -> list[list[Text]]:
    """Blocks of lines put beside each other, as many in a row as there is room for."""
    made: list[list[Text]] = []
    used = 0
    for block in blocks:
        width = max(line.cell_len for line in block)
        if made and used + GAP + width <= room and len(block) == len(made[-1]):
            made[-1] = [
                Text.assemble(line, " " * GAP, more)
                for line, more in zip(made[-1], block, strict=True)
            ]
            used += GAP + width
        else:
            made.append(list(block))
            used = width
    return made


def bar(share: float, cells: int) -> str:
    """A bar of at most so many cells, to an eighth of a cell.

    >>> bar(1.0, 3), bar(0.5, 3)
    ('███', '█▌')
    """
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    return ("█" * (eighths // 8) + BLOCKS[eighths % 8]).rstrip()


def products(left: Sequence[float], right: Sequence[float], room: int) -> str:
    """A sum of products written out; where it is too long, its first terms and the last.

    >>> products([0.55, 0.87], [0.43, 0.15], 40)
    '0.55×0.43 + 0.87×0.15'
    >>> products([1.0] * 9, [0.25] * 9, 40)
    '1.00×0.25 + 1.00×0.25 + … + 1.00×0.25'
    """
    first, second = written(left[:99]), written(right[:99])
    terms = [f"{first(a)}×{second(b)}" for a, b in zip(left, right, strict=True)]
    whole = " + ".join(terms) if len(terms) < 99 else ""
    if whole and len(whole) <= room:
        return whole
    shown, room = 1, room - len(terms[-1]) - len(" + … + ")
    while shown < len(terms) - 2 and len(" + ".join(terms[: shown + 1])) <= room:
        shown += 1
    return " + ".join([*terms[:shown], "…", terms[-1]]) if len(terms) > 1 else whole


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
