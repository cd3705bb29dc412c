"""Tables, heat maps and text for the terminal; they are plain in a pipe or with NO_COLOR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from heedful.errors import printable

SHADES = " ·░▒▓█"
# viridis in eight even steps: its lightness is monotonic, so colour-blind readers can order colours
COLOURS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
NARROWEST = 20  # width of a terminal; less is taken for a mistake
LABEL = 9  # width of a token's label, in terminal cells


class _Console(Console):
    """A console that raises BrokenPipeError, at which rich's own exits, and escapes texts."""

    def render(self, *renderable: Any) -> Iterator[Segment]:
        """Yield the segments of an object, with visible signs in place of control characters."""
        for part in super().render(*renderable):
            yield part if part.control else part._replace(text=printable(part.text))

    def on_broken_pipe(self) -> None:
        """Re-raise; rich calls this while it handles the error."""
        raise


def console(stderr: bool = False) -> Console:
    """Return a console that is plain outside a terminal and respects NO_COLOR.

    It prints strings as they are: names of others may contain rich's markup, such as [/].
    """
    screen = _Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if screen.width < NARROWEST:  # some programs set COLUMNS=0
        screen.width = 80
    return screen


class Trimmed(Table):
    """A table without trailing blanks, for pipes and for copied text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table's segments without trailing blanks in each line."""
        parts = (part for part in super().__rich_console__(console, options))
        for line in Segment.split_lines(part for part in parts if isinstance(part, Segment)):
            while line and not line[-1].text.strip() and not _is_coloured(line[-1]):
                line.pop()
            if line and not _is_coloured(line[-1]):
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from line
            yield Segment.line()


def _is_coloured(part: Segment) -> bool:
    return part.style is not None and part.style.bgcolor is not None


def table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], numbers: Iterable[int] = ()
) -> Table:
    """Return a table; the columns whose indices are in `numbers` are right-aligned."""
    output = Trimmed(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    right = set(numbers)
    for i, column in enumerate(columns):
        output.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        output.add_row(*(Text(printable(str(cell))) for cell in row))
    return output


def flow(items: Iterable[str], room: int) -> str:
    """Join items by two spaces, in lines of at most `room` cells; no item is split.

    >>> print(flow(["the 20 %", "a 10 %", "this 9 %"], room=16))
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
    """Return names and their values in two columns."""
    output = Trimmed.grid(padding=(0, 2, 0, 0))
    output.add_column(style="dim", no_wrap=True)
    output.add_column(overflow="fold")
    for name, value in pairs:
        output.add_row(Text(name), Text(printable(value)))
    return output


def heatmap(weights: np.ndarray, labels: Sequence[str], coloured: bool) -> RenderableType:
    """Draw the causal attention map (N, N) of one head: a row per query, two cells per key.

    The colour (viridis) or the shade of a cell encodes the square root of the weight.
    """
    lines = []
    for n, label in enumerate(labels):
        line = Text(fit(label, LABEL) + " ", style="dim", no_wrap=True)
        for m in range(len(labels)):
            line.append(*_cell(float(weights[n, m]), m <= n, coloured))
        lines.append(line)
    return Group(*lines)


def _cell(weight: float, is_visible: bool, coloured: bool) -> tuple[str, Style]:
    if not is_visible:
        return "  ", Style.null()
    strength = max(0.0, min(1.0, weight)) ** 0.5
    steps = COLOURS if coloured else SHADES
    shade = steps[min(len(steps) - 1, int(strength * len(steps)))]
    return ("  ", Style(bgcolor=shade)) if coloured else (shade * 2, Style.null())


def fit(label: str, width: int, left: bool = False) -> str:
    """Pad a label to `width` cells, right-aligned unless `left`, or cut it with an ellipsis.

    The small digits of a repeated token are not cut.

    >>> fit("journey", 5), fit("one", 5), fit("注意力机制", 6), fit("journey₁₂", 6)
    ('jour…', '  one', '注意… ', 'jou…₁₂')
    """
    if cell_len(label) > width:
        if 0 < (digits := len(label) - len(label.rstrip("₀₁₂₃₄₅₆₇₈₉"))) < width:
            return fit(label[:-digits], width - digits) + label[-digits:]
        return set_cell_size(set_cell_size(label, width - 1).rstrip() + "…", width)
    space = " " * (width - cell_len(label))
    return label + space if left else space + label


def total_width(columns: Iterable[Iterable[str]], gap: int) -> int:
    """Return the total width in cells of columns (title included) with gaps between them."""
    widest = [max(map(cell_len, column)) for column in columns]
    return sum(widest) + gap * (len(widest) - 1)


def side_by_side(parts: Sequence[RenderableType], titles: Sequence[str]) -> Table:
    """Return the parts side by side, each below its title."""
    grid = Trimmed.grid(padding=(0, 4, 0, 0))
    for _ in parts:
        grid.add_column()
    grid.add_row(*(Text(title, style="bold") for title in titles))
    grid.add_row(*parts)
    return grid


def plural(number: int, name: str) -> str:
    """Write a count and its noun, which is singular for 1.

    >>> plural(1, "block"), plural(1024, "token")
    ('1 block', '1,024 tokens')
    """
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def count(number: int) -> str:
    """Write a number for people: 1,234 or 12.3 million.

    >>> count(1234), count(124_439_808)
    ('1,234', '124.4 million')
    """
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.1f} {word}"
    return f"{number:,}"


def duration(seconds: float) -> str:
    """Write seconds for people.

    >>> duration(8), duration(95), duration(3720)
    ('8 s', '1 min 35 s', '1 h 02 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"
