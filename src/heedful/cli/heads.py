"""The command `heedful heads`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import survey
from heedful.cli.input_texts import (
    is_recording,
    read_text,
    refuse_with_recording,
    text_options,
    verify_option,
)
from heedful.cli.options import check_model, json_option, opening_options, refuse, sequence_option
from heedful.cli.segments_option import (
    SegmentsOption,
    TableOptions,
    check_usage,
    over_heads_option,
    print_shares,
    record_with_segments,
    segments_option,
)
from heedful.cli.sequence_choice import map_sequences
from heedful.errors import RunError
from heedful.head_kinds import MEANS, MIN_BROAD, MIN_QUERIES, MIN_SCORE, ONCE_IN, SCORES

if TYPE_CHECKING:
    from heedful.recording import Head, HeadTotals, Recording
    from heedful.views.head_tables import Row

NUMBERS = (*SCORES, *MEANS)
DEFINITIONS = "\n".join(
    f"  {name}: {score.definition};\n      {score.source}" for name, score in SCORES.items()
)
EXAMPLE = f"""\b
Examples:
  heedful heads first.safetensors
  heedful heads runs/first "the cat sat, and the cat sat" --sort induction --count 10
  heedful heads google-bert/bert-base-uncased "The cat sat." --sort previous --evidence
  heedful heads HuggingFaceTB/SmolLM2-135M --file chapter.txt --json
  heedful heads microsoft/mpnet-base "The cat sat." --verify
  heedful heads runs/first --texts books --include '*.txt' --sort induction
  torchrun --standalone --nproc-per-node 4 -m heedful heads runs/first --texts books --json
  heedful heads google-bert/bert-base-uncased --file prompt.txt --segments @@ --over-heads
  heedful heads first.safetensors --segments system=0:40,question=40:60 --sort question:system

\b
Scores range from 0 to 1. Each score is a mean over the queries that can choose between keys:
{DEFINITIONS}
  entropy is in nats, and distance is in tokens; both are means over all queries.

A head's kind is its highest score that meets three conditions: the score is {MIN_SCORE} or more
({MIN_BROAD} for broad), it is a mean over {MIN_QUERIES} queries or more, and fewer than one of
{ONCE_IN:,} heads would reach it if their rows were shuffled. Chance is the expected score if the
weights of each row were shuffled among its allowed keys; --evidence prints the chance. Shuffling
does not change the entropy of a row, so chance is undefined for broad. The kinds local and broad
are used only if no other kind fits. "–" marks a head without a kind, and an undefined score, such
as previous in cross-attention. A score that is undefined for all heads has no column.

--segments: a line that begins with MARK starts a segment. The remaining characters of the line name
the segment (@@question); a segment without a name gets a number. The model does not read these
lines. A token belongs to the segment that contains its first visible character; "rest" contains all
other tokens. A share is the sum of the weights on the keys of a segment, as a mean over the queries
of the same or another segment. Chance is the share of uniform attention over the allowed keys. A
share is "–" if the mask excludes all keys of the segment.

--texts: each number is a mean over the queries of all texts, so a long text counts more than a
short one. A text longer than the model's context is split into consecutive contexts; the last one
may be shorter. A text that cannot be read is named on standard error, and the exit status is 1.
Processes started by torchrun divide the texts among them; the numbers stay the same.

Layers and heads are counted from 0, as in `plot` and `explain`. In an encoder–decoder, induction
and duplicate use the tokens of the encoder or of the decoder, never both. If a layer ran more
than once in a forward pass, the column "call" shows each call's index in the recording. The lines
beneath the table report for how many calls the weights reproduce the model's output ("proved"),
could not be compared with it ("unproved") or contradict it ("refuted": no numbers are shown). They
also report how the axes (heads, queries, keys) were identified: by the layer ("told"), by --verify
("verified"), by their usual order ("usual"), or by one of several possible orders ("guessed").
Architectures that heedful does not implement need the transformers library.
"""


class Sort(click.Choice):
    """The name of a score, or a pair of segments such as question:document."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Check the name of a score; return a pair of segments unchanged."""
        return value if ":" in str(value) else super().convert(value, param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@text_options
@survey.texts_option
@survey.include_option
@survey.context_option
@click.option(
    "--sort", type=Sort(NUMBERS),
    help="Sort by this score, highest first [by layer]. With --segments, sort by a share: "
    "question:document is the share of attention from question to document.",
)  # fmt: skip
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Show only the first N heads [all]."
)
@click.option(
    "--evidence", is_flag=True,
    help="Show the evidence for each head's kind: score, chance and number of queries.",
)  # fmt: skip
@sequence_option("all")
@segments_option
@over_heads_option
@verify_option
@opening_options()
@json_option
def heads(
    source: Path, text: str | None, file: Path | None, second: str | None, cut: bool,
    texts: tuple[Path, ...], include: str | None, context_length: int | None, sort: str | None,
    count: int | None, evidence: bool, sequence: int | None, segments: SegmentsOption | None,
    over_heads: bool, verify: bool, opening: dict[str, Any], as_json: bool,
) -> int:  # fmt: skip
    """List all attention heads, named layer.head, with their scores and kinds.

    SOURCE is a recording, or a model of any architecture: a training run, a directory in Hugging
    Face format, or a hub name. A model's attention is first recorded on TEXT or on all --texts.
    """
    options = TableOptions(sort, count, evidence, over_heads, as_json)
    if texts:
        refuse(
            "cannot be combined with --texts.", text=text, file=file, second=second, cut=cut,
            sequence=sequence, segments=segments, verify=verify,
        )  # fmt: skip
        check_usage(segments, False, sort, over_heads)
        selection = survey.TextSelection(texts, include, context_length)
        return _survey(source, selection, options, opening)
    refuse("needs --texts.", include=include, context_length=context_length)
    has_recording = is_recording(source)
    check_usage(segments, has_recording, sort, over_heads)
    ranges: Any = None if segments is None else segments.ranges
    if has_recording:
        refuse_with_recording(source, text=text, file=file, second=second, cut=cut, verify=verify)
        from heedful.recording import load

        recording = load(source)
    else:
        words = read_text(text, file)
        check_model(source, opening)
        from heedful.loaded import open_model

        opened = open_model(source, **opening)
        recording, ranges = record_with_segments(
            opened, words, second, segments, cut=cut, verify=verify
        )
    if ranges is not None:
        print_shares(recording, ranges, sequence, options)
    else:
        _print_heads(recording, source, sequence, options)
    return 0


def _survey(
    source: Path, selection: survey.TextSelection, options: TableOptions, opening: dict[str, Any]
) -> int:
    """Print heads with scores over all texts; return the exit status, 1 if a text was left out."""
    if is_recording(source):
        raise click.UsageError("--texts needs a model: the text of a recording is fixed.")
    from heedful.torchrun import started

    processes = started()
    opened = survey.open_shared(source, opening, processes, selection.check)
    result = selection.survey(opened, processes)
    if not processes.is_first:
        return 0
    from heedful.views.head_tables import Row

    rows = _sorted([Row(0, head) for head in result.found.heads()], options)
    if options.as_json:
        heads = [as_data(row.head) for row in rows[: options.count]]
        click.echo(json.dumps(survey.as_data(result) | {"heads": heads}))
    else:
        _print(rows, options, result.found, survey.summary_line(result))
    return int(bool(result.left_out))


def _print_heads(
    recording: Recording, source: Path, sequence: int | None, options: TableOptions
) -> None:
    from heedful.views.head_tables import Row

    by_sequence = map_sequences(recording, sequence, lambda text, progress: text.heads(progress))
    rows = [Row(number, head) for number, heads in by_sequence.items() for head in heads]
    if not rows:
        raise RunError(
            f"nothing was recorded in {source}",
            expected="at least one call of attention",
            remedy="record again, with the forward pass inside the `with` block",
        )
    rows = _sorted(rows, options)
    if options.as_json:
        heads = [{"sequence": number, **as_data(head)} for number, head in rows[: options.count]]
        click.echo(json.dumps(heads))
    else:
        _print(rows, options, recording)


def _sorted(rows: list[Row], options: TableOptions) -> list[Row]:
    """Sort the rows by a score, highest first; without --sort return them unchanged."""
    if options.sort is None:
        return rows
    name = "self_" if options.sort == "self" else options.sort
    numbers = [-1.0 if (n := getattr(row.head, name)) is None else n for row in rows]
    return [rows[i] for i in sorted(range(len(rows)), key=lambda i: -numbers[i])]


def _print(
    rows: list[Row], options: TableOptions, source: Recording | HeadTotals, *notes: str
) -> None:
    """Print a table of heads, the names of columns that did not fit, notes, and the proof."""
    from heedful.cli import proofs
    from heedful.views.head_tables import evidence_table, scores_table
    from heedful.views.terminal import console

    screen = console()
    make_table = evidence_table if options.evidence else scores_table
    table, left_out = make_table(rows, options.count, options.sort, screen.width)
    screen.print(table)
    if left_out:
        columns = ", ".join(left_out)
        line = f"\ncolumns that did not fit: {columns}; widen the terminal, or use --json"
        screen.print(line, style="dim")
    for note in notes:
        screen.print(f"\n{note}", style="dim", highlight=False)
    proofs.print_proof(source, screen)


def as_data(head: Head) -> dict[str, Any]:
    """Return a head as a dictionary for --json; the key of `self_` is "self"."""
    return {name.rstrip("_"): value for name, value in head._asdict().items()}
