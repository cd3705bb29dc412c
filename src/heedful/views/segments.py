"""Tables of how much each head reads of each segment, as wide as the terminal is."""

from __future__ import annotations

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from heedful.recording.segment_table import Cells, Rows, cells, listed
from heedful.views.terminal import fit, table, widths

NAMES = (12, 8, 5)  # cells of a segment's name, where whole names have no room


def shares_table(rows: Rows, evidence: bool, width: int) -> Table:
    """A column for each segment that is read; or with the evidence a line for each.

    Where there is no room for the columns, names are shortened; then each has a line.
    """
    names = {name for _, row in rows for name in (row.from_, row.to)}
    kinds = [listed(rows)] if evidence else [cells(rows), listed(rows)]
    tried = [
        made
        for whole in kinds
        for made in (whole, *(_shortened(whole, names, size) for size in NAMES))
    ]
    made = next((one for one in tried if _width(one, 1) <= width), tried[-1])
    drawn = table(made.titles, [], made.numbers)
    drawn.padding = (0, 2 if _width(made, 2) <= width else 1, 0, 0)
    for line in made.lines:
        drawn.add_row(*map(Text, line))
    for line in made.beneath:
        drawn.add_row(*map(Text, line), style="dim")
    return drawn


def _shortened(made: Cells, names: set[str], size: int) -> Cells:
    """With names of segments of at most so many cells."""

    def short(words: list[str]) -> list[str]:
        return [
            fit(word, size, left=True) if word in names and cell_len(word) > size else word
            for word in words
        ]

    return made._replace(
        titles=short(made.titles),
        lines=[short(line) for line in made.lines],
        beneath=[short(line) for line in made.beneath],
    )


def _width(made: Cells, gap: int) -> int:
    """How many cells the columns take with a gap between them."""
    return widths(zip(made.titles, *made.lines, *made.beneath, strict=True), gap)
