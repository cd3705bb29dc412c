"""What the terminal shows: colours where it can, plain text in a pipe or with NO_COLOR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

SHADES = " ·░▒▓█"
# viridis at eight even steps, which keeps its order of lightness for the colour-blind
COLOURS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
LABEL = 9  # cells of a token's label


class _Console(Console):
    """A console that raises where its reader has gone; that of rich ends the process."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error."""
        raise


def console(stderr: bool = False) -> Console:
    """A console that is plain where it is not a terminal, and honours NO_COLOR."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False)


class Trimmed(Table):
    """A table whose lines end where their text ends: no blanks after it, in a pipe or a copy."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the table, each without the blanks at its end."""
        parts = (one for one in super().__rich_console__(console, options))
        for line in Segment.split_lines(one for one in parts if isinstance(one, Segment)):
            while line and not line[-1].text.strip() and not _is_coloured(line[-1]):
                line.pop()
            if line and not _is_coloured(line[-1]):
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from line
            yield Segment.line()


def _is_coloured(part: Segment) -> bool:
    return part.style is not None and part.style.bgcolor is not None


def table(
    columns: Iterable[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> Table:
    """A table with light rules; columns of the given indices are aligned as numbers."""
    made = Trimmed(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    right = set(numbers)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


def flowed(items: Iterable[str], room: int) -> str:
    """Items with two spaces between, in lines of at most so many cells; none is broken.

    >>> print(flowed(["the 20 %", "a 10 %", "this 9 %"], room=16))
    the 20 %  a 10 %
    this 9 %
    """
    lines: list[str] = []
    for item in items:
        if lines and cell_len(lines[-1]) + 2 + cell_len(item) <= room:
            lines[-1] += "  " + item
        else:
            lines.append(item)
    return "\n".join(lines)


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and what they are, in two columns."""
    made = Trimmed.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, Text(value))
    return made


def heatmap(weights: np.ndarray, labels: Sequence[str], coloured: bool) -> RenderableType:
    """A causal map (N, N) of one head: rows are queries, columns keys, two cells a weight.

    With colours the cells are viridis, on the square root of the weight; without, shades.
    """
    lines = []
    for n, label in enumerate(labels):
        line = Text(fit(label, LABEL) + " ", style="dim", no_wrap=True)
        for m in range(len(labels)):
            line.append(*_cell(float(weights[n, m]), m <= n, coloured))
        lines.append(line)
    return Group(*lines)


def _cell(weight: float, seen: bool, coloured: bool) -> tuple[str, Style]:
    if not seen:
        return "  ", Style.null()
    strength = max(0.0, min(1.0, weight)) ** 0.5
    if coloured:
        colour = COLOURS[min(len(COLOURS) - 1, int(strength * len(COLOURS)))]
        return "  ", Style(bgcolor=colour)
    return SHADES[min(len(SHADES) - 1, int(strength * len(SHADES)))] * 2, Style.null()


def fit(label: str, width: int, left: bool = False) -> str:
    """A label in exactly `width` cells, with an ellipsis where it was cut, to the right.

    >>> fit("journey", 5), fit("one", 5), fit("注意力机制", 6)
    ('jour…', '  one', '注意… ')
    """
    if cell_len(label) > width:
        return set_cell_size(set_cell_size(label, width - 1).rstrip() + "…", width)
    space = " " * (width - cell_len(label))
    return label + space if left else space + label


def widths(columns: Iterable[Iterable[str]], gap: int) -> int:
    """How many cells columns take, each with its title, with a gap between them."""
    widest = [max(map(cell_len, column)) for column in columns]
    return sum(widest) + gap * (len(widest) - 1)


def side_by_side(parts: Sequence[RenderableType], titles: Sequence[str]) -> Table:
    """Parts beside each other, a title over each."""
    grid = Trimmed.grid(padding=(0, 4, 0, 0))
    for _ in parts:
        grid.add_column()
    grid.add_row(*(Text(title, style="bold") for title in titles))
    grid.add_row(*parts)
    return grid


def many(number: int, name: str) -> str:
    """A number of things, in the singular where it is one.

    >>> many(1, "block"), many(1024, "token")
    ('1 block', '1,024 tokens')
    """
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def count(number: int) -> str:
    """A number for people: 1,234 or 12.3 million.

    >>> count(1234), count(124_439_808)
    ('1,234', '124.4 million')
    """
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.1f} {word}"
    return f"{number:,}"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(8), duration(95), duration(3720)
    ('8 s', '1 min 35 s', '1 h 02 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
