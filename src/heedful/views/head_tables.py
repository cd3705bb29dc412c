"""Tables of heads, as wide as the terminal is: scores, what kinds rest on, and who reads what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from heedful.head_kinds import FEWEST, LEAST, MEANS, NONE, SCORES
from heedful.recording import Head
from heedful.recording.segment_table import Cells, Rows, cells, listed
from heedful.views.terminal import fit, table, widths

SHORT = {"previous": "prev", "induction": "induct", "duplicate": "dupl", "distance": "dist"}
WORDS = ("head", "map", "kind", "proof", "layout", "why")
# Columns in the order in which they are left out where a terminal is too narrow for all
LEAST_NEEDED = (
    "distance", "entropy", "duplicate", "broad", "local", "induction", "why", "self", "sink",
    "previous", "layout", "proof", "pass",
)  # fmt: skip
NOTHING = "–"
NAMES = (12, 8, 5)  # cells of a segment's name, where whole names have no room


class Row(NamedTuple):
    """A head, and the number of its sequence in the batch."""

    sequence: int
    head: Head


class Shown(NamedTuple):
    """A table, and the names of the columns that it has no room for."""

    table: Table
    left_out: list[str]


def scores_table(rows: list[Row], count: int | None, sort: str | None, width: int) -> Shown:
    """The first rows with every score; what is the same in all, or known in none, has no column.

    The last lines are what chance gives, and how many queries there are, where all rows agree.

    Args:
        rows: of all heads.
        count: how many to show; default all.
        sort: the score by which they are sorted, whose column stays.
        width: of the terminal, in cells.
    """
    names = [
        name for name in (*SCORES, *MEANS) if any(_number(row, name) is not None for row in rows)
    ]
    shown = rows[:count]
    columns = _places(rows, shown) | {"kind": [_kind(row) for row in shown]}
    columns |= {name: [_short(_number(row, name)) for row in shown] for name in names}
    below = {name: _below(rows, name) for name in names if name in SCORES}
    has_below = bool(below) and all(cell for cells in below.values() for cell in cells)
    if has_below:
        below |= {"head": ["chance", "queries"]}
        columns = {name: [*cells, *below.get(name, ["", ""])] for name, cells in columns.items()}
    bold = {(i, row.head.kind) for i, row in enumerate(shown)}
    return _drawn(columns, bold, 2 * has_below, sort, width)


def evidence_table(rows: list[Row], count: int | None, sort: str | None, width: int) -> Shown:
    """The first rows with what each kind rests on: its score, chance, and the number of queries.

    A head without a kind has its highest score in brackets, and why that is none. Arguments as in
    `scores_table`.
    """
    shown = rows[:count]
    best = [(row, _highest(row)) for row in shown]
    columns = _places(rows, shown)
    columns["kind"] = [_kind(row, name) for row, name in best]
    columns["score"] = [_short(_number(row, name)) for row, name in best]
    columns["chance"] = [_short(row.head.chance.get(name)) for row, name in best]
    columns["queries"] = [str(row.head.queries.get(name, 0)) for row, name in best]
    columns["why"] = [_why_none(row, name) for row, name in best]
    if sort in (*SCORES, *MEANS):  # the order of the rows is to be seen
        columns[sort] = [_short(_number(row, sort)) for row in shown]
    return _drawn(columns, set(), 0, sort, width)


def _below(rows: list[Row], name: str) -> list[str]:
    """Chance and the number of queries of a score, where all rows that have it agree."""
    known = [row for row in rows if _number(row, name) is not None]
    return [
        _alike([_short(row.head.chance.get(name)) for row in known]),
        _alike([str(row.head.queries.get(name, 0)) for row in known]),
    ]


def _places(rows: list[Row], shown: list[Row]) -> dict[str, list[str]]:
    """Where each head is, as layer.head, and what else tells rows apart."""
    parts: dict[str, list] = {
        "seq": [row.sequence for row in rows],
        "call": [row.head.call for row in rows],
        "pass": [row.head.pass_index for row in rows],
        "map": [row.head.attention for row in rows],
        "proof": [row.head.proof for row in rows],
        "layout": [row.head.layout for row in rows],
    }
    known = {
        (row.sequence, row.head.pass_index, row.head.attention, row.head.layer, row.head.head)
        for row in rows
    }
    if len(known) == len(rows):
        del parts["call"]  # the others say it already
    layers = [NOTHING if row.head.layer is None else row.head.layer for row in shown]
    heads = (row.head.head for row in shown)
    found = {"head": [f"{layer}.{head}" for layer, head in zip(layers, heads, strict=True)]}
    for name, values in parts.items():
        if len(set(values)) > 1:
            found[name] = [str(value) for value in values[: len(shown)]]
    return found


def _drawn(
    columns: dict[str, list[str]],
    bold: set[tuple[int, str]],
    below: int,
    sort: str | None,
    width: int,
) -> Shown:
    """The columns that fit; the last `below` lines are dim."""
    left_out = []
    for name in LEAST_NEEDED:
        if widths(_with_titles(columns), 1) <= width:
            break
        if name in columns and name != sort:
            del columns[name]
            left_out.append(SHORT.get(name, name))
    titles = [SHORT.get(name, name) for name in columns]
    numbers = [i for i, title in enumerate(titles) if title not in WORDS]
    made = _spaced(titles, numbers, _with_titles(columns), width)
    lines = list(zip(*columns.values(), strict=True))
    for i, line in enumerate(lines):
        styles = ["bold" if (i, name) in bold else "" for name in columns]
        texts = [Text(cell, style=style) for cell, style in zip(line, styles, strict=True)]
        made.add_row(*texts, style="dim" if i >= len(lines) - below else None)
    return Shown(made, left_out)


def _with_titles(columns: dict[str, list[str]]) -> list[list[str]]:
    return [[SHORT.get(name, name), *cells] for name, cells in columns.items()]


def _spaced(
    titles: list[str], numbers: Iterable[int], columns: list[list[str]], width: int
) -> Table:
    """An empty table; two cells stand between its columns where that has room."""
    made = table(titles, [], numbers)
    made.padding = (0, 2 if widths(columns, 2) <= width else 1, 0, 0)
    return made


def _kind(row: Row, highest: str = "") -> str:
    if row.head.kind != NONE:
        return row.head.kind
    return f"{NOTHING} ({highest})" if highest else NOTHING


def _highest(row: Row) -> str:
    """The kind of a head, or of one that has none its highest score with a chance."""
    if row.head.kind != NONE:
        return row.head.kind
    scores = {
        name: row.head.scores[name] for name, one in row.head.chance.items() if one is not None
    }
    return max(scores, key=lambda name: scores[name] or 0.0, default="")


def _why_none(row: Row, highest: str) -> str:
    """Why a head has no kind, in a few words; empty where it has one."""
    if row.head.kind != NONE or not highest:
        return ""
    if (_number(row, highest) or 0.0) < LEAST:
        return f"below {LEAST}"
    return "few queries" if row.head.queries[highest] < FEWEST else "may be chance"


def _number(row: Row, name: str) -> float | None:
    return getattr(row.head, "self_" if name == "self" else name) if name else None


def _short(number: float | None) -> str:
    return NOTHING if number is None else f"{number:.2f}"


def _alike(found: list[str]) -> str:
    """What all rows agree on, or nothing."""
    return found[0] if len(set(found)) == 1 else ""


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
    made = next((one for one in tried if widths(_columns(one), 1) <= width), tried[-1])
    drawn = _spaced(made.titles, made.numbers, _columns(made), width)
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


def _columns(made: Cells) -> list[list[str]]:
    return [list(one) for one in zip(made.titles, *made.lines, *made.beneath, strict=True)]
