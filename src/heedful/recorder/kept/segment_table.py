"""A table of segments: a line for each head and segment that reads, a column for each that is read.

Beneath stands what chance gives in each place, where all heads agree on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from heedful.recorder.kept.notebook import CELL, QUIET, TABLE
from heedful.recorder.kept.segments import Segments, SegmentShare

NOTHING, LINES = "–", 400  # lines of a table that is printed or shown


class Cells(NamedTuple):
    """The words of a table: titles, lines, and the lines beneath them; `numbers` are on the right.

    numbers: the columns that have numbers.
    """

    titles: list[str]
    lines: list[list[str]]
    beneath: list[list[str]]
    numbers: list[int]


def cells(rows: Sequence[SegmentShare], sequences: Sequence[int] = ()) -> Cells:
    """The table of rows, head by head; `sequences` are the numbers of theirs in a batch."""
    to = list(dict.fromkeys(row.to for row in rows))
    groups: dict[tuple, dict[str, SegmentShare]] = {}
    for i, row in enumerate(rows):
        batch = sequences[i] if sequences else 0
        place = (batch, row.call, row.name, row.pass_index, row.head, row.from_)
        groups.setdefault(place, {})[row.to] = row
    heads = [(place[0], next(iter(group.values()))) for place, group in groups.items()]
    parts = {
        "head": [_head(row) for _, row in heads],
        "seq": [str(batch) for batch, _ in heads],
        "call": [str(row.call) for _, row in heads],
        "map": [row.attention for _, row in heads],
        "proof": [row.proof for _, row in heads],
        "from": [row.from_ for _, row in heads],
    }
    if len({(*place[:1], *place[2:]) for place in _places(heads)}) == len(heads):
        del parts["call"]  # the others say it already
    where = {name: own for name, own in parts.items()
             if name in ("head", "from") or len(set(own)) > 1}  # fmt: skip
    shares = [[_share(group.get(name)) for name in to] for group in groups.values()]
    asked = [f"{row.queries:,}" for _, row in heads]
    lines = [
        [*place, *own, number]
        for place, own, number in zip(zip(*where.values(), strict=True), shares, asked, strict=True)
    ]
    titles = [*where, *to, "queries"]
    if heads and heads[0][1].head is None:
        titles[0] = "layer"
    beneath = _chance(rows, to, len(where))
    return Cells(titles, lines, beneath, list(range(len(where), len(titles))))


def _places(heads: list[tuple[int, SegmentShare]]) -> list[tuple]:
    return [
        (batch, row.call, row.attention, row.layer, row.head, row.from_) for batch, row in heads
    ]


def _chance(rows: Sequence[SegmentShare], to: list[str], before: int) -> list[list[str]]:
    """A line for each segment that reads: what chance gives, where all heads agree."""
    found = []
    for one in dict.fromkeys(row.from_ for row in rows):
        own = []
        for name in to:
            known = {
                f"{row.chance:.2f}"
                for row in rows
                if (row.from_, row.to) == (one, name) and row.chance is not None
            }
            own.append(known.pop() if len(known) == 1 else "")
        if any(own):
            found.append(["chance", *[""] * (before - 2), one, *own, ""])
    return found


def _head(row: SegmentShare) -> str:
    layer = NOTHING if row.layer is None else str(row.layer)
    return layer if row.head is None else f"{layer}.{row.head}"


def _share(row: SegmentShare | None) -> str:
    """A share; a dash where there is none, or where the mask lets no query see any."""
    if row is None or row.share is None or row.chance == 0:
        return NOTHING
    return f"{row.share:.2f}"


def text(found: Segments) -> str:
    """The table in plain letters."""
    made = cells(found)
    lines = [made.titles, *made.lines[:LINES], *made.beneath]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = []
    for line in lines:
        aligned = [
            word.rjust(width) if i in made.numbers else word.ljust(width)
            for i, (word, width) in enumerate(zip(line, widths, strict=True))
        ]
        drawn.append("  ".join(aligned).rstrip())
    return "\n".join([*drawn, *_notes(found, len(made.lines))])


def html(found: Segments) -> str:
    """The table as HTML, in a notebook's own colours."""
    made = cells(found)

    def line(words: list[str], tag: str = "td", style: str = "") -> str:
        own = [
            f'<{tag} style="{CELL}{style}{";text-align:right" if i in made.numbers else ""}">'
            f"{escape(word)}</{tag}>"
            for i, word in enumerate(words)
        ]
        return f"<tr>{''.join(own)}</tr>"

    numbers = ";font-variant-numeric:tabular-nums"
    body = [line(words, style=numbers) for words in made.lines[:LINES]]
    body += [line(words, style=f"{numbers};color:#6e7781") for words in made.beneath]
    notes = "".join(f'<div style="{QUIET}">{escape(note)}</div>'
                    for note in _notes(found, len(made.lines)))  # fmt: skip
    return (
        f'<div><table style="{TABLE}"><thead>{line(made.titles, "th")}</thead>'
        f"<tbody>{''.join(body)}</tbody></table>{notes}</div>"
    )


def _notes(found: Segments, lines: int) -> list[str]:
    notes = [f"{name} is left out: {why}" for name, why in found.left_out.items()]
    if lines > LINES:
        notes.append(f"{lines - LINES:,} lines more: .over_heads() is shorter, .to_json() has all")
    return notes
