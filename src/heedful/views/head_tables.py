"""Tables of heads that fit the terminal: scores, evidence for kinds, and segments' shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from heedful.head_kinds import MEANS, MIN_QUERIES, MIN_SCORE, NONE, SCORES
from heedful.recording import Head
from heedful.recording.segment_table import Cells, Rows, cells, listed
from heedful.views.terminal import table, total_width

SHORT = {"previous": "prev", "induction": "induct", "duplicate": "dupl", "distance": "dist"}
TEXT_COLUMNS = ("head", "map", "kind", "proof", "layout", "why")
# Columns are dropped in this order when the terminal is too narrow
DROP_ORDER = (
    "distance", "entropy", "duplicate", "broad", "local", "induction", "why", "self", "sink",
    "previous", "layout", "proof", "pass",
)  # fmt: skip
MISSING = "–"
Fitted = tuple[Table, list[str]]  # a table, and the names of the columns that did not fit


class Row(NamedTuple):
    """The scores of one head in one sequence of the batch."""

    sequence: int
    head: Head


def scores_table(
    rows: list[Row], count: int | None, sort: str | None, width: int,
    more: Mapping[str, list[str]] | None = None,
) -> Fitted:  # fmt: skip
    """Return a table of the first rows, without constant identifying columns and undefined scores.

    If the chances and numbers of queries are the same in all rows, two last lines show them.

    Args:
        rows: one row per head.
        count: number of rows to show; None shows all.
        sort: the score that the rows are sorted by; its column is never dropped.
        width: width of the terminal in cells.
        more: the cells of further columns, for all rows, beside the names of the heads.
    """
    names = [
        name for name in (*SCORES, *MEANS) if any(_score(row, name) is not None for row in rows)
    ]
    visible = rows[:count]
    columns = _identity_columns(rows, visible)
    columns |= {name: cells[: len(visible)] for name, cells in (more or {}).items()}
    columns |= {"kind": [_kind(row) for row in visible]}
    columns |= {name: [_number_text(_score(row, name)) for row in visible] for name in names}
    footer = {name: _footer(rows, name) for name in names if name in SCORES}
    has_footer = bool(footer) and all(cell for cells in footer.values() for cell in cells)
    if has_footer:
        footer |= {"head": ["chance", "queries"]}
        columns = {name: [*cells, *footer.get(name, ["", ""])] for name, cells in columns.items()}
    bold = {(i, row.head.kind) for i, row in enumerate(visible)}
    return _fitted(columns, bold, 2 * has_footer, sort, width)


def evidence_table(rows: list[Row], count: int | None, sort: str | None, width: int) -> Fitted:
    """Return the first rows with the evidence for each kind: score, chance, number of queries.

    The row of a head without a kind shows its highest score, named in brackets, and the reason in
    the column `why`. The arguments are those of `scores_table`.
    """
    visible = rows[:count]
    best = [(row, _highest(row)) for row in visible]
    columns = _identity_columns(rows, visible)
    columns["kind"] = [_kind(row, name) for row, name in best]
    columns["score"] = [_number_text(_score(row, name)) for row, name in best]
    columns["chance"] = [_number_text(row.head.chance.get(name)) for row, name in best]
    columns["queries"] = [str(row.head.queries.get(name, 0)) for row, name in best]
    columns["why"] = [_why_no_kind(row, name) for row, name in best]
    if sort in (*SCORES, *MEANS):  # the column that explains the order of the rows
        columns[sort] = [_number_text(_score(row, sort)) for row in visible]
    return _fitted(columns, set(), 0, sort, width)


def _footer(rows: list[Row], name: str) -> list[str]:
    """Return a score's chance and number of queries; "" for a number that differs between rows."""
    heads = [row.head for row in rows if _score(row, name) is not None]
    chances = {_number_text(head.chance.get(name)) for head in heads}
    queries = {str(head.queries.get(name, 0)) for head in heads}
    return [values.pop() if len(values) == 1 else "" for values in (chances, queries)]


def _identity_columns(rows: list[Row], visible: list[Row]) -> dict[str, list[str]]:
    """Return the column of layer.head, and the other identifying columns that are not constant."""
    parts: dict[str, list] = {
        "seq": [row.sequence for row in rows],
        "call": [row.head.call for row in rows],
        "pass": [row.head.pass_index for row in rows],
        "map": [row.head.attention for row in rows],
        "proof": [row.head.proof for row in rows],
        "layout": [row.head.layout for row in rows],
    }
    identities = {
        (row.sequence, row.head.pass_index, row.head.attention, row.head.layer, row.head.head)
        for row in rows
    }
    if len(identities) == len(rows):
        del parts["call"]  # the other columns identify each row
    layers = [MISSING if row.head.layer is None else row.head.layer for row in visible]
    heads = (row.head.head for row in visible)
    columns = {"head": [f"{layer}.{head}" for layer, head in zip(layers, heads, strict=True)]}
    for name, values in parts.items():
        if len(set(values)) > 1:
            columns[name] = [str(value) for value in values[: len(visible)]]
    return columns


def _fitted(
    columns: dict[str, list[str]],
    bold: set[tuple[int, str]],
    footer_lines: int,
    sort: str | None,
    width: int,
) -> Fitted:
    """Return a table of the columns that fit; `bold` are cells, as (row index, column name)."""
    left_out = []
    for name in DROP_ORDER:
        if total_width(_with_titles(columns), 1) <= width:
            break
        if name in columns and name != sort:
            del columns[name]
            left_out.append(SHORT.get(name, name))
    titles = [SHORT.get(name, name) for name in columns]
    numbers = [i for i, title in enumerate(titles) if title not in TEXT_COLUMNS]
    output = _spaced(titles, numbers, _with_titles(columns), width)
    lines = list(zip(*columns.values(), strict=True))
    for i, line in enumerate(lines):
        styles = ["bold" if (i, name) in bold else "" for name in columns]
        texts = [Text(cell, style=style) for cell, style in zip(line, styles, strict=True)]
        output.add_row(*texts, style="dim" if i >= len(lines) - footer_lines else None)
    return output, left_out


def _with_titles(columns: dict[str, list[str]]) -> list[list[str]]:
    return [[SHORT.get(name, name), *cells] for name, cells in columns.items()]


def _spaced(
    titles: list[str], numbers: Iterable[int], columns: list[list[str]], width: int
) -> Table:
    """Return an empty table with two cells between columns if the table then fits, else one."""
    output = table(titles, [], numbers)
    output.padding = (0, 2 if total_width(columns, 2) <= width else 1, 0, 0)
    return output


def _kind(row: Row, highest: str = "") -> str:
    if row.head.kind != NONE:
        return row.head.kind
    return f"{MISSING} ({highest})" if highest else MISSING


def _highest(row: Row) -> str:
    """Return a head's kind, or else the name of its highest score for which chance is defined."""
    if row.head.kind != NONE:
        return row.head.kind
    chances = row.head.chance
    scores = {name: row.head.scores[name] for name in chances if chances[name] is not None}
    return max(scores, key=lambda name: scores[name] or 0.0, default="")


def _why_no_kind(row: Row, highest: str) -> str:
    """Return the reason that a head has no kind, in a few words; "" if it has a kind."""
    if row.head.kind != NONE or not highest:
        return ""
    if (_score(row, highest) or 0.0) < MIN_SCORE:
        return f"below {MIN_SCORE}"
    return "few queries" if row.head.queries[highest] < MIN_QUERIES else "may be chance"


def _score(row: Row, name: str) -> float | None:
    return getattr(row.head, "self_" if name == "self" else name) if name else None


def _number_text(number: float | None) -> str:
    return MISSING if number is None else f"{number:.2f}"


def shares_table(rows: Rows, evidence: bool, width: int) -> Table:
    """Return a table with a column per segment of keys or, with `evidence`, a line per share.

    If the columns do not fit, the table has a line per share too; rich then folds long names.
    """
    chosen = listed(rows) if evidence else cells(rows)
    if total_width(_columns(chosen), 1) > width:
        chosen = listed(rows)
    output = _spaced(chosen.titles, chosen.numbers, _columns(chosen), width)
    for line in chosen.lines:
        output.add_row(*map(Text, line))
    for line in chosen.footer:
        output.add_row(*map(Text, line), style="dim")
    return output


def _columns(table: Cells) -> list[list[str]]:
    return [list(cells) for cells in zip(table.titles, *table.lines, *table.footer, strict=True)]
