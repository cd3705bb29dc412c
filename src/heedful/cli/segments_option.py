"""`--segments`: what it tells, and how the shares are shown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.input_texts import recorded
from heedful.cli.options import refuse
from heedful.cli.sequence_choice import of_each
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.loaded import LoadedModel
    from heedful.recording import Recording, Segments, SegmentShare

Ranges = dict[str, list[int] | slice]
RANGE = re.compile(r"([^=,]+)=(\d*)(:?)(\d*)")
HELP = """Show how much each head reads of each segment, from each. --segments @@ cuts the text at
lines such as @@question; --segments question=40:60,… tells tokens by their numbers, the end not
included."""


class Given(NamedTuple):
    """What --segments tells: a mark of lines in the text, or the tokens of each segment."""

    mark: str | None
    ranges: Ranges


def segments_of(ctx: click.Context, option: click.Parameter, value: str | None) -> Given | None:
    """A mark, or ranges of tokens; `BadParameter` for what looks like ranges and is none."""
    if value is None:
        return None
    parts = [RANGE.fullmatch(part.strip()) for part in value.split(",")]
    if not all(parts) and not re.search(r"\w=\d", value):
        return Given(value, {})
    ranges: dict[str, Any] = {}
    for part in parts:
        name, first, colon, last = part.groups() if part else ("", "", "", "")
        start = int(first or 0)
        run = [*range(start, int(last) if last else start + 1)]
        tokens = slice(start, None) if colon and not last else run
        joins = isinstance(tokens, list) and isinstance(ranges.get(name, []), list)
        if not (first or colon) or (name in ranges and not joins):
            example = "system=0:40,question=40:60, where 0:40 are the tokens 0 to 39"
            raise click.BadParameter(f"{value!r} is no list such as {example}.", ctx, option)
        ranges[name] = ranges[name] + tokens if name in ranges else tokens
    return Given(None, ranges)


segments_option = click.option(
    "--segments", callback=segments_of, metavar="MARK|NAME=A:B,…", help=" ".join(HELP.split())
)
over_heads_option = click.option(
    "--over-heads", is_flag=True, help="With --segments: the mean over the heads of each layer."
)


@dataclass(frozen=True)
class Asked:
    """Which rows are shown, and how."""

    sort: str | None
    count: int | None
    evidence: bool
    over_heads: bool
    as_json: bool


def check_usage(
    given: Given | None, is_recording: bool, sort: str | None, over_heads: bool
) -> None:
    """Refuse options that do not go together, before anything is opened.

    Raises:
        ArgumentError: a mark for a recording, whose text is read already.
    """
    if given is None:
        refuse("is for --segments.", over_heads=over_heads)
        if sort is not None and ":" in sort:
            raise click.UsageError(f"--sort {sort} is for --segments.")
    elif sort is not None and ":" not in sort:
        raise click.UsageError("With --segments, --sort takes a pair, such as question:document.")
    elif is_recording and given.mark is not None:
        raise ArgumentError(
            f"the mark {given.mark!r} for a recording, which does not have its text",
            expected="the tokens of each segment",
            remedy="--segments system=0:40,question=40:60",
        )


def recorded_with_segments(
    opened: LoadedModel,
    text: str,
    second: str | None,
    segments: Given | None,
    *,
    cut: bool,
    **options: Any,
) -> tuple[Recording, Any]:
    """The recording of a text without the lines that mark it, and the tokens of its segments."""
    from heedful.loaded import Marked

    if segments is None or segments.mark is None:
        recording = recorded(opened, text, second, cut=cut, **options)
        return recording, segments and segments.ranges
    marked = Marked.of(text, segments.mark, second)
    recording = recorded(opened, marked.text, marked.second, cut=cut, **options)
    return recording, marked.tokens(opened, cut=cut)


def show_shares(recording: Recording, segments: Any, sequence: int | None, asked: Asked) -> None:
    """Print the shares as a table or as JSON."""
    from heedful.cli import certainty
    from heedful.views.head_tables import shares_table
    from heedful.views.progress import share_done
    from heedful.views.terminal import console

    with share_done("reading the maps") as tell:
        found = of_each(
            recording, sequence, lambda text, tell: text.segments(segments, progress=tell), tell
        )
    if asked.over_heads:
        found = {at: one.over_heads() for at, one in found.items()}
    rows = sorted_rows(found, asked.sort, asked.count)
    if asked.as_json:
        click.echo(json.dumps([{"sequence": row.sequence, **row.share.as_data()} for row in rows]))
        return
    screen = console()
    screen.print(shares_table(rows, asked.evidence, screen.width))
    for line in dict.fromkeys(line for one in found.values() for line in one.notes):
        screen.print(line, style="dim", highlight=False)
    certainty.show(recording, screen)


class Row(NamedTuple):
    """A share, and the number of its sequence in the batch."""

    sequence: int
    share: SegmentShare


def sorted_rows(found: dict[int, Segments], sort: str | None, count: int | None) -> list[Row]:
    """The rows of so many heads; sorted by a pair, such as "question:document", those that it asks.

    Raises:
        ArgumentError: no such pair.
    """
    heads: dict[tuple, list[Row]] = {}
    for at, shares in found.items():
        for share in shares:
            key = (at, share.call, share.name, share.pass_index, share.head)
            heads.setdefault(key, []).append(Row(at, share))
    groups = list(heads.values())
    if sort is not None:
        readers = {_pair(row): row.share.from_ for group in groups for row in group}
        if sort not in readers:
            raise ArgumentError(f"--sort {sort}", expected=f"one of {', '.join(readers)}")
        groups.sort(key=lambda group: _height(group, sort), reverse=True)
        groups = [[row for row in group if row.share.from_ == readers[sort]] for group in groups]
    return [row for group in [group for group in groups if group][:count] for row in group]


def _pair(row: Row) -> str:
    return f"{row.share.from_}:{row.share.to}"


def _height(group: list[Row], sort: str) -> float:
    known = [row.share.share for row in group if _pair(row) == sort]
    return -1.0 if not known or known[0] is None else known[0]
