"""`heedful heads`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import survey as of_texts
from heedful.cli.input_texts import (
    cut_option,
    file_option,
    is_recording,
    read_text,
    refuse_with_recording,
    second_option,
    verify_option,
)
from heedful.cli.options import (
    check_model,
    json_option,
    opening_options,
    refuse,
    sequence_option,
)
from heedful.cli.segments_option import (
    Asked,
    Given,
    check_usage,
    over_heads_option,
    recorded_with_segments,
    segments_option,
    show_shares,
)
from heedful.cli.sequence_choice import of_each
from heedful.errors import RunError
from heedful.head_kinds import FEWEST, LEAST, LEAST_BROAD, MEANS, ONCE_IN, SCORES

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
Scores, from 0 to 1, each the mean over the queries that have a choice:
{DEFINITIONS}
  entropy: in nats; distance: in tokens; both means over the queries.

\b
A head is called by its highest score where that is {LEAST} or more, rests on {FEWEST} queries or
more, and is so far above chance that shuffled rows reach it less than once in {ONCE_IN:,} heads.
Chance is what the same rows give with their keys shuffled among those that the mask allows; with
--evidence it stands beside each kind. "local" and "broad" only where no other fits; "broad" from
{LEAST_BROAD} on, and it has no chance: shuffling leaves the entropy of a row as it is. "–" where
none fits. As a number, "–" is one that says nothing here, such as previous in cross-attention; one
that says nothing of any head has no column.

\b
With --segments: a line of the text that begins with the mark begins a segment, whose name follows
on it (@@question); the model does not read it, and what has no name has its number, from 1. A token
belongs where its first letter stands; "rest" is what is in no segment. A share is the mean, over
the queries of a segment that may see anything, of the weight on all keys of another; chance is the
same of rows spread evenly over what the mask allows, and "–" where it allows nothing.

\b
With --texts every number is a mean over the queries of all texts, as if they were one long list: a
long text weighs more than a short one. A text that is longer than the model's context is cut into
contexts, one after another, the last as long as what is left; nothing is left out but what a line
on standard error names, and then the exit status is 1. Started by torchrun, processes share the
texts out, and the numbers are the same.

\b
Layers and heads are numbered from 0, as in `plot` and `explain`. In an encoder–decoder induction
and duplicate are of each side's own tokens. Where a layer ran more than once in a pass, call is the
place in the recording. Beneath the table stands what proves the numbers, and how their axes are
known. "unproved" numbers could not be compared, "refuted" calls show none. Which axis is what is
"told" by the layer, "verified" by --verify, in the "usual" order, or "guessed": then another choice
was possible. Architectures that are not ours need transformers.
"""


class Sort(click.Choice):
    """A score, or a pair of segments."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """One of the choices, or what has a colon, as it is."""
        return value if ":" in str(value) else super().convert(value, param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@second_option
@cut_option
@of_texts.texts_option
@of_texts.include_option
@of_texts.context_option
@click.option(
    "--sort",
    type=Sort(NUMBERS),
    help="The highest of this first; without it, layer by layer. With --segments a pair, as "
    "question:document: the heads whose question reads most of the document.",
)
@click.option("--count", type=click.IntRange(1), help="Show so many heads only.")
@click.option(
    "--evidence",
    is_flag=True,
    help="Show what each kind rests on: its score, chance, and the number of queries.",
)
@sequence_option
@segments_option
@over_heads_option
@verify_option
@opening_options()
@json_option
def heads(
    source: Path,
    text: str | None,
    file: Path | None,
    second: str | None,
    cut: bool,
    texts: tuple[Path, ...],
    include: str | None,
    context_length: int | None,
    sort: str | None,
    count: int | None,
    evidence: bool,
    sequence: int | None,
    segments: Given | None,
    over_heads: bool,
    verify: bool,
    opening: dict[str, Any],
    as_json: bool,
) -> int:
    """List every head, as layer.head, with its scores and its kind.

    SOURCE is a recording; or a model of any architecture (a run, a directory in Hugging Face
    format, a hub name), whose attention on TEXT, or on all --texts, is then recorded first.
    """
    asked = Asked(sort, count, evidence, over_heads, as_json)
    if texts:
        refuse(
            "does not go with --texts.", text=text, file=file, second=second, cut=cut,
            sequence=sequence, segments=segments, verify=verify,
        )  # fmt: skip
        check_usage(segments, False, sort, over_heads)
        return _over_texts(source, of_texts.Chosen(texts, include, context_length), asked, opening)
    refuse("is for --texts.", include=include, context_length=context_length)
    is_kept = is_recording(source)
    check_usage(segments, is_kept, sort, over_heads)
    parts: Any = None if segments is None else segments.ranges
    if is_kept:
        refuse_with_recording(source, text=text, file=file, second=second, cut=cut, verify=verify)
        from heedful.recording import load

        recording = load(source)
    else:
        words = read_text(text, file)
        check_model(source, opening)
        from heedful.loaded import open_model

        opened = open_model(source, **opening)
        recording, parts = recorded_with_segments(
            opened, words, second, segments, cut=cut, verify=verify
        )
    if parts is not None:
        show_shares(recording, parts, sequence, asked)
    else:
        _show_heads(recording, source, sequence, asked)
    return 0


def _over_texts(source: Path, texts: of_texts.Chosen, asked: Asked, opening: dict[str, Any]) -> int:
    """Show the heads over all texts; the exit status, 1 where something was left out."""
    if is_recording(source):
        raise click.UsageError("a recording has its text already: --texts is for a model.")
    from heedful.torchrun import started

    here = started()
    if here.is_first:  # which tells what is missing for all
        with here.announcing():
            texts.check()
            check_model(source, opening)
    from heedful.device import choose_device
    from heedful.loaded import open_model
    from heedful.views.head_tables import Row

    device = str(choose_device(opening["device"], here.local))
    together = texts.over(open_model(source, **opening | {"device": device}), here)
    if not here.is_first:
        return 0
    rows = _sorted([Row(0, head) for head in together.found.heads()], asked)
    if asked.as_json:
        click.echo(of_texts.as_json(together, [as_data(row.head) for row in rows[: asked.count]]))
    else:
        about = of_texts.about(together)
        _print(rows, asked, together.found, about)
    return int(bool(together.left_out))


def _show_heads(recording: Recording, source: Path, sequence: int | None, asked: Asked) -> None:
    from heedful.views.head_tables import Row
    from heedful.views.progress import share_done

    with share_done("reading the maps") as tell:
        by_text = of_each(recording, sequence, lambda text, tell: text.heads(tell), tell)
    rows = [Row(at, head) for at, heads in by_text.items() for head in heads]
    if not rows:
        raise RunError(
            f"nothing was recorded in {source}",
            expected="at least one call of attention",
            remedy="record again, with the model's pass inside the `with` block",
        )
    rows = _sorted(rows, asked)
    if asked.as_json:
        shown = [{"sequence": at, **as_data(head)} for at, head in rows[: asked.count]]
        click.echo(json.dumps(shown))
    else:
        _print(rows, asked, recording)


def _sorted(rows: list[Row], asked: Asked) -> list[Row]:
    """The rows as they are asked for: the highest of a score first, or layer by layer."""
    name = asked.sort
    if name is None:
        return rows
    return sorted(rows, key=lambda row: _height(row.head, name), reverse=True)


def _print(rows: list[Row], asked: Asked, proved: Recording | HeadTotals, *notes: str) -> None:
    """A table of heads, what it has no room for, notes, and what proves it."""
    from heedful.cli import certainty
    from heedful.views.head_tables import evidence_table, scores_table
    from heedful.views.terminal import console

    screen = console()
    show = evidence_table if asked.evidence else scores_table
    shown = show(rows, asked.count, asked.sort, screen.width)
    screen.print(shown.table)
    if shown.left_out:
        missing = (
            f"\nwithout {', '.join(shown.left_out)}: a wider terminal has room, --json has all"
        )
        screen.print(missing, style="dim")
    for note in notes:
        screen.print(f"\n{note}", style="dim", highlight=False)
    certainty.show(proved, screen)


def as_data(head: Head) -> dict[str, Any]:
    """A head as --json has it: `self_` is "self"."""
    return {name.rstrip("_"): value for name, value in head._asdict().items()}


def _height(head: Head, name: str) -> float:
    number = getattr(head, "self_" if name == "self" else name)
    return -1.0 if number is None else number
