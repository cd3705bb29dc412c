"""`--segments`: what it tells, and how the shares are shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.options import refuse
from heedful.cli.reading import recorded
from heedful.cli.sequences import with_progress
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.opened import Opened
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


class SegmentsType(click.ParamType):
    """A mark, or ranges of tokens."""

    name = "segments"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As --help shows it."""
        return "MARK|NAME=A:B,…"

    def convert(self, value: Any, param: Any, ctx: Any) -> Given:
        """What was told."""
        found = [RANGE.fullmatch(part.strip()) for part in str(value).split(",")]
        if not all(found):
            if re.search(r"\w=\d", str(value)):
                example = "system=0:40,question=40:60, where 0:40 are the tokens 0 to 39"
                self.fail(f"{value!r} is no list such as {example}.", param, ctx)
            return Given(str(value), {})
        ranges: dict[str, Any] = {}
        for one in found:
            name, first, colon, last = one.groups()  # type: ignore[union-attr]
            if not (first or colon):
                self.fail(f"{value!r}: {name} has no tokens.", param, ctx)
            ranges.setdefault(name, []).append(_tokens(first, colon, last))
        return Given(None, {name: _together(own) for name, own in ranges.items()})


def _tokens(first: str, colon: str, last: str) -> range | slice:
    """The tokens of 0:40, of 7, or of 40: to the end."""
    if colon and not last:
        return slice(int(first or 0), None)
    start = int(first or 0)
    return range(start, int(last) if colon else start + 1)


def _together(parts: list[range | slice]) -> list[int] | slice:
    """Several ranges of one name as one segment."""
    first, *others = parts
    if isinstance(first, slice) and not others:
        return first
    ranges = [part for part in parts if isinstance(part, range)]
    if len(ranges) < len(parts):
        raise click.UsageError("A segment of several ranges needs the end of each.")
    return [token for part in ranges for token in part]


segments_option = click.option("--segments", type=SegmentsType(), help=" ".join(HELP.split()))
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
    opened: Opened,
    text: str,
    second: str | None,
    segments: Given | None,
    *,
    cut: bool,
    **options: Any,
) -> tuple[Recording, Any]:
    """The recording of a text without the lines that mark it, and the tokens of its segments."""
    from heedful.opened import Marked

    if segments is None or segments.mark is None:
        recording = recorded(opened, text, second, cut=cut, **options)
        return recording, segments and segments.ranges
    marked = Marked.of(text, segments.mark, second)
    recording = recorded(opened, marked.text, marked.second, cut=cut, **options)
    return recording, marked.tokens(opened, cut=cut)


def show_shares(recording: Recording, segments: Any, sequence: int | None, asked: Asked) -> None:
    """Print the shares as a table or as JSON."""
    from heedful.cli import proofs
    from heedful.views.progress import share_done
    from heedful.views.segments import shares_table
    from heedful.views.terminal import console

    with share_done("reading the maps") as tell:
        found = shares_of(recording, segments, sequence, tell)
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
    proofs.show(recording, screen)


def shares_of(
    recording: Recording,
    segments: Any,
    sequence: int | None,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[int, Segments]:
    """The shares of every sequence of a batch, or of one, by the sequence's number."""
    return {
        at: text.segments(segments, progress=tell)
        for at, text, tell in with_progress(recording, sequence, progress)
    }


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
    for at, rows in found.items():
        for row in rows:
            key = (at, row.call, row.name, row.pass_index, row.head)
            heads.setdefault(key, []).append(Row(at, row))
    groups = list(heads.values())
    if sort is not None:
        pairs = dict.fromkeys(_pair(row) for group in groups for row in group)
        if sort not in pairs:
            raise ArgumentError(f"--sort {sort}", expected=f"one of {', '.join(pairs)}")
        reader = next(row.share.from_ for group in groups for row in group if _pair(row) == sort)
        groups.sort(key=lambda group: _height(group, sort), reverse=True)
        groups = [[row for row in group if row.share.from_ == reader] for group in groups]
    return [row for group in [group for group in groups if group][:count] for row in group]


def _pair(row: Row) -> str:
    return f"{row.share.from_}:{row.share.to}"


def _height(group: list[Row], sort: str) -> float:
    known = [row.share.share for row in group if _pair(row) == sort]
    return -1.0 if not known or known[0] is None else known[0]
