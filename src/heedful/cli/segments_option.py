"""`--segments`: parsing the option, and printing the shares of attention between segments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.input_texts import record_text
from heedful.cli.options import refuse
from heedful.cli.sequence_choice import map_sequences
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.loaded import LoadedModel
    from heedful.recording import Recording, Segments, SegmentShare

Ranges = dict[str, list[int] | slice]
RANGE = re.compile(r"([^=,]+)=(\d*)(:?)(\d*)")
HELP = """Show the shares of attention between segments of the text. With --segments @@, a line such
as @@question begins a segment. --segments question=40:60,… lists the tokens of each segment, here
the tokens 40 to 59 of question."""


class SegmentsOption(NamedTuple):
    """The value of --segments: the mark that begins a segment, or the tokens of each segment."""

    mark: str | None
    ranges: Ranges


def parse_segments(
    ctx: click.Context, option: click.Parameter, value: str | None
) -> SegmentsOption | None:
    """Return a mark or token ranges; raise `BadParameter` for malformed ranges."""
    if value is None:
        return None
    parts = [RANGE.fullmatch(part.strip()) for part in value.split(",")]
    if not all(parts) and not re.search(r"\w=\d", value):
        return SegmentsOption(value, {})
    ranges: dict[str, Any] = {}
    for part in parts:
        name, first, colon, last = part.groups() if part else ("", "", "", "")
        start = int(first or 0)
        indices = [*range(start, int(last) if last else start + 1)]
        tokens = slice(start, None) if colon and not last else indices
        can_join = isinstance(tokens, list) and isinstance(ranges.get(name, []), list)
        if not (first or colon) or (name in ranges and not can_join):
            example = "system=0:40,question=40:60, where 0:40 are the tokens 0 to 39"
            raise click.BadParameter(f"{value!r} is not a list such as {example}.", ctx, option)
        ranges[name] = ranges[name] + tokens if name in ranges else tokens
    return SegmentsOption(None, ranges)


segments_option = click.option(
    "--segments", callback=parse_segments, metavar="MARK|NAME=A:B,…", help=" ".join(HELP.split())
)
over_heads_option = click.option(
    "--over-heads", is_flag=True, help="With --segments: show the mean over each layer's heads."
)


@dataclass(frozen=True)
class TableOptions:
    """The options that select the rows of the table, and the form of the output."""

    sort: str | None
    count: int | None
    evidence: bool
    over_heads: bool
    as_json: bool


def check_usage(
    segments: SegmentsOption | None, is_recording: bool, sort: str | None, over_heads: bool
) -> None:
    """Check that the options can be combined, before a model is opened.

    Raises:
        UsageError: the options exclude each other, or one of them needs --segments.
        ArgumentError: a mark for a recording, which stores tokens and not the text.
    """
    if segments is None:
        refuse("needs --segments.", over_heads=over_heads)
        if sort is not None and ":" in sort:
            raise click.UsageError(f"--sort {sort} needs --segments.")
    elif sort is not None and ":" not in sort:
        raise click.UsageError("with --segments, --sort takes a pair, such as question:document.")
    elif is_recording and segments.mark is not None:
        raise ArgumentError(
            f"the mark {segments.mark!r} for a recording, which stores tokens and not the text",
            expected="the tokens of each segment",
            remedy="pass the tokens, as in --segments system=0:40,question=40:60",
        )


def record_with_segments(
    opened: LoadedModel,
    text: str,
    second: str | None,
    segments: SegmentsOption | None,
    *,
    cut: bool,
    **options: Any,
) -> tuple[Recording, Any]:
    """Record a text without the marked lines; return the recording and the segments' tokens."""
    from heedful.loaded import Marked

    if segments is None or segments.mark is None:
        recording = record_text(opened, text, second, cut=cut, **options)
        return recording, segments and segments.ranges
    marked = Marked.of(text, segments.mark, second)
    recording = record_text(opened, marked.text, marked.second, cut=cut, **options)
    return recording, marked.tokens(opened, cut=cut)


def print_shares(
    recording: Recording, segments: Any, sequence: int | None, options: TableOptions
) -> None:
    """Print the shares of attention between segments as a table or as JSON."""
    from heedful.cli import proofs
    from heedful.views.head_tables import shares_table
    from heedful.views.terminal import console

    results = map_sequences(
        recording, sequence, lambda text, progress: text.segments(segments, progress=progress)
    )
    if options.over_heads:
        results = {number: shares.over_heads() for number, shares in results.items()}
    rows = sorted_rows(results, options.sort, options.count)
    if options.as_json:
        click.echo(json.dumps([{"sequence": row.sequence, **row.share.as_data()} for row in rows]))
        return
    screen = console()
    screen.print(shares_table(rows, options.evidence, screen.width))
    for line in dict.fromkeys(line for shares in results.values() for line in shares.notes):
        screen.print(line, style="dim", highlight=False)
    proofs.print_proof(recording, screen)


class Row(NamedTuple):
    """A share, and the number of its sequence in the batch."""

    sequence: int
    share: SegmentShare


def sorted_rows(results: dict[int, Segments], sort: str | None, count: int | None) -> list[Row]:
    """Return the rows of the first `count` heads.

    With a `sort` such as "question:document", sort heads by the share from question to document,
    highest first, and return only the rows whose queries belong to the segment question.

    Raises:
        ArgumentError: `sort` is not a pair of segments.
    """
    heads: dict[tuple, list[Row]] = {}
    for number, shares in results.items():
        for share in shares:
            key = (number, share.call, share.name, share.pass_index, share.head)
            heads.setdefault(key, []).append(Row(number, share))
    groups = list(heads.values())
    if sort is not None:
        query_segments = {_pair(row): row.share.from_ for group in groups for row in group}
        if sort not in query_segments:
            raise ArgumentError(f"--sort {sort}", expected=f"one of {', '.join(query_segments)}")
        groups.sort(key=lambda group: _share_of_pair(group, sort), reverse=True)
        chosen = query_segments[sort]
        groups = [[row for row in group if row.share.from_ == chosen] for group in groups]
    return [row for group in [group for group in groups if group][:count] for row in group]


def _pair(row: Row) -> str:
    return f"{row.share.from_}:{row.share.to}"


def _share_of_pair(group: list[Row], pair: str) -> float:
    shares = [row.share.share for row in group if _pair(row) == pair]
    return -1.0 if not shares or shares[0] is None else shares[0]
