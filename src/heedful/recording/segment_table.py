"""Attention between segments as data (`SegmentShare`, `Segments`) and as tables.

A table has a row for each segment of queries of each head, and a column for each segment of keys.
The last rows are the chances that all heads share. A dash means undefined, or fully masked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

DASH, LINES = "–", 400  # LINES: the maximum number of rows that are printed or displayed
# CSS of a table in a notebook
TABLE = "border-collapse:collapse;font-size:12px;text-align:left"
CELL = "padding:3px 12px 3px 0;vertical-align:middle;text-align:left;white-space:nowrap"
QUIET = "color:#6e7781;font-size:12px;margin:2px 0"


class SegmentShare(NamedTuple):
    """How much one head attends from one segment of queries to one segment of keys.

    layer, head: numbers in the model, from 0. `layer` is None if the module's name has no number;
        `head` is None in the mean over heads.
    from_, to: the segments of the queries and of the keys. "rest" is all tokens in no segment;
        "learned sink" is the weight on no key.
    share: 0 to 1, the total weight of a query on the keys of `to`, averaged over the queries; None
        if all queries are fully masked, or the call is refuted.
    chance: the share of uniform attention; 0 if the mask excludes all keys of `to`. None if the
        share is None, and for the learned sink.
    queries: the number of queries in the mean, which excludes fully masked ones.
    keys: the number of tokens in `to`.
    call: the index of the call among the (stitched) calls on the text; for `Call.segments`, the
        call's `index`.
    name, attention (its kind), pass_index, proof, layout, why: those of the call.
    """

    layer: int | None
    head: int | None
    from_: str
    to: str
    share: float | None
    chance: float | None
    queries: int
    keys: int
    call: int
    name: str
    attention: str
    pass_index: int
    proof: str
    layout: str
    why: str

    def as_data(self) -> dict[str, Any]:
        """Return the fields as a dictionary; the key of `from_` is "from"."""
        return {name.rstrip("_"): value for name, value in self._asdict().items()}


class Segments(list[SegmentShare]):
    """A list of `SegmentShare`s, head by head, which prints as a table.

    left_out: the names of modules that attend over other tokens than the text's, with the reasons.
    """

    def __init__(
        self, rows: Iterable[SegmentShare] = (), left_out: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(rows)
        self.left_out = dict(left_out or {})

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(row.from_ for row in self))
        heads = len({(row.call, row.name, row.pass_index, row.head) for row in self})
        return f"<Segments of {heads:,} head{'' if heads == 1 else 's'}: {names}>"

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html(self)

    @property
    def notes(self) -> list[str]:
        """A sentence for each module in `left_out`."""
        return [f"{name} is left out: {why}" for name, why in self.left_out.items()]

    def over_heads(self) -> Segments:
        """Return the mean over the heads of each call; `head` is None."""
        groups: dict[tuple, list[SegmentShare]] = {}
        for row in self:
            key = (row.call, row.name, row.pass_index, row.from_, row.to)
            groups.setdefault(key, []).append(row)
        rows = [
            group[0]._replace(
                head=None, share=_mean(row.share for row in group),
                chance=_mean(row.chance for row in group),
                queries=max(row.queries for row in group),
            )
            for group in groups.values()
        ]  # fmt: skip
        return Segments(rows, self.left_out)

    def as_data(self) -> list[dict[str, Any]]:
        """Return a dictionary for each share."""
        return [row.as_data() for row in self]

    def to_json(self) -> str:
        """Return the shares as a JSON list of objects."""
        return json.dumps(self.as_data())


class Cells(NamedTuple):
    """The text of a table: column titles, lines, and a footer.

    numbers: the indices of the columns with numbers, which are right-aligned.
    """

    titles: list[str]
    lines: list[list[str]]
    footer: list[list[str]]
    numbers: range


Rows: TypeAlias = Sequence[tuple[int, SegmentShare]]  # shares, each with the index of its sequence


def cells(rows: Rows) -> Cells:
    """Return a table with a row per head and query segment, and a column per key segment."""
    key_segments = list(dict.fromkeys(row.to for _, row in rows))
    groups: dict[tuple, dict[str, SegmentShare]] = {}
    for batch, row in rows:
        key = (batch, row.call, row.name, row.pass_index, row.head, row.from_)
        groups.setdefault(key, {})[row.to] = row
    firsts = [(key[0], next(iter(group.values()))) for key, group in groups.items()]
    labels, lines = _label_columns(firsts), []
    for i, group in enumerate(groups.values()):
        words = [column[i] for column in labels.values()]
        shares = [_share(group.get(name)) for name in key_segments]
        lines.append([*words, *shares, f"{firsts[i][1].queries:,}"])
    titles = [*labels, *key_segments, "queries"]
    footer = _chance_lines(rows, key_segments, len(labels))
    return Cells(titles, lines, footer, range(len(labels), len(titles)))


def listed(rows: Rows) -> Cells:
    """Return a table with a row per share, with its chance and numbers of queries and keys."""
    labels = _label_columns(rows)
    lines = [
        [*(column[i] for column in labels.values()),
         row.to, _share(row), _number(row.chance), f"{row.queries:,}", f"{row.keys:,}"]
        for i, (_, row) in enumerate(rows)
    ]  # fmt: skip
    titles = [*labels, "to", "share", "chance", "queries", "keys"]
    return Cells(titles, lines, [], range(len(labels) + 1, len(titles)))


def _label_columns(rows: Rows) -> dict[str, list[str]]:
    """Return the columns that identify a row, by title: head, query segment, and any that vary."""
    layers = [DASH if row.layer is None else str(row.layer) for _, row in rows]
    heads = ["" if row.head is None else f".{row.head}" for _, row in rows]
    parts = {
        "head": [layer + head for layer, head in zip(layers, heads, strict=True)],
        "seq": [str(batch) for batch, _ in rows],
        "call": [str(row.call) for _, row in rows],
        "map": [row.attention for _, row in rows],
        "proof": [row.proof for _, row in rows],
        "layout": [row.layout for _, row in rows],
        "from": [row.from_ for _, row in rows],
    }
    by_call = {(batch, row.call, row.head) for batch, row in rows}
    by_layer = {(batch, row.attention, row.layer, row.head) for batch, row in rows}
    if len(by_layer) == len(by_call):
        del parts["call"]  # the other columns identify the call
    first = "layer" if rows and rows[0][1].head is None else "head"
    return {
        first if name == "head" else name: words
        for name, words in parts.items()
        if name in ("head", "from") or len(set(words)) > 1
    }


def _chance_lines(rows: Rows, key_segments: list[str], label_count: int) -> list[list[str]]:
    """Return the chances of each query segment as a line; a cell is empty if heads differ in it."""
    chances: dict[str, dict[str, set[str]]] = {}
    for _, row in rows:
        by_name = chances.setdefault(row.from_, {name: set() for name in key_segments})
        if row.chance is not None:
            by_name[row.to].add(_number(row.chance))
    lines = []
    for from_, by_name in chances.items():
        words = [texts.pop() if len(texts) == 1 else "" for texts in by_name.values()]
        if any(words):
            lines.append(["chance", *[""] * (label_count - 2), from_, *words, ""])
    return lines


def _share(row: SegmentShare | None) -> str:
    """Return a share as text; a dash if it is undefined, or if the mask excludes the segment."""
    if row is None or row.share is None or row.chance == 0:
        return DASH
    return _number(row.share)


def _number(number: float | None) -> str:
    return DASH if number is None else f"{number:.2f}"


def text(shares: Segments) -> str:
    """Return the table as plain text."""
    table = cells([(0, row) for row in shares])
    columns = []
    for i, words in enumerate(zip(table.titles, *table.lines[:LINES], *table.footer, strict=True)):
        align = str.rjust if i in table.numbers else str.ljust
        columns.append([align(word, max(map(len, words))) for word in words])
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return "\n".join([*lines, *_notes(shares, len(table.lines))])


def html(shares: Segments) -> str:
    """Return the table as HTML for a notebook."""
    table = cells([(0, row) for row in shares])

    def line(words: list[str], tag: str = "td", style: str = "") -> str:
        row = ""
        for i, word in enumerate(words):
            align = ";text-align:right" if i in table.numbers else ""
            row += f'<{tag} style="{CELL}{style}{align}">{escape(word)}</{tag}>'
        return f"<tr>{row}</tr>"

    numbers = ";font-variant-numeric:tabular-nums"
    body = [line(words, style=numbers) for words in table.lines[:LINES]]
    body += [line(words, style=f"{numbers};color:#6e7781") for words in table.footer]
    notes = [f'<div style="{QUIET}">{escape(note)}</div>'
             for note in _notes(shares, len(table.lines))]  # fmt: skip
    return (
        f'<div><table style="{TABLE}"><thead>{line(table.titles, "th")}</thead>'
        f"<tbody>{''.join(body)}</tbody></table>{''.join(notes)}</div>"
    )


def _notes(shares: Segments, lines: int) -> list[str]:
    notes = shares.notes
    if lines > LINES:
        notes.append(f"{lines - LINES:,} lines more: .over_heads() is shorter, .to_json() has all")
    return notes


def _mean(numbers: Iterable[float | None]) -> float | None:
    values = [number for number in numbers if number is not None]
    return sum(values) / len(values) if values else None
