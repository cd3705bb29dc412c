"""`heedful heads`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from rich.table import Table
from rich.text import Text

from heedful.cli import proofs
from heedful.cli.cut import cut_option
from heedful.cli.options import (
    checkpoint_option,
    device_option,
    file_option,
    json_option,
    pickle_option,
    read_text,
    revision_option,
    second_option,
)
from heedful.cli.record import record_text
from heedful.errors import RunError
from heedful.opened import open_model
from heedful.recorder import Call, Recording, load
from heedful.recorder.kept import head_types
from heedful.recorder.kept.head_types import HEAD_TYPES
from heedful.views.progress import share_done
from heedful.views.terminal import console, table

SUFFIX = ".safetensors"  # a name that ends so is a recording's, also where there is none

SHORT = {
    "previous": "prev",
    "induction": "induct",
    "duplicate": "dupl",
    "distance": "dist",
    "pass_index": "pass",
    "attention": "map",
}
NUMBERS = (*HEAD_TYPES, *head_types.MEANS)
PLACELESS = ("sink", "broad", "entropy")  # numbers that need no common places of queries and keys
DEFINITIONS = "\n".join(
    f"  {name}: {kind.definition};\n      {kind.source}" for name, kind in HEAD_TYPES.items()
)
EXAMPLE = f"""\b
Examples:
  heedful heads first.safetensors
  heedful heads runs/first "the cat sat, and the cat sat" --sort induction --count 10
  heedful heads google-bert/bert-base-uncased "The cat sat." --sort previous
  heedful heads HuggingFaceTB/SmolLM2-135M --file chapter.txt --json

\b
Scores, from 0 to 1, each the mean over the queries that have a choice:
{DEFINITIONS}
  entropy: in nats; distance: in tokens; both means over the queries.

\b
Beneath the table stands what is not proved: "assumed" are right numbers whose texts or heads are a
guess, "unproved" numbers that could not be compared, "refuted" calls that show none.

\b
A head is called by its highest score where that is 0.4 or more; "local" and "broad" only where no
other reaches it, and "–" where none does. As a number, "–" is one that says nothing here, such as
previous in cross-attention; one that says nothing of any head has no column. In an encoder–decoder
induction and duplicate are of each side's own tokens. Where a layer ran
more than once in a pass, call is the place in the recording. Architectures that are not ours need
transformers.
"""


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@second_option
@cut_option
@click.option(
    "--sort",
    type=click.Choice(NUMBERS),
    help="The highest of this first; without it, layer by layer.",
)
@click.option("--count", type=click.IntRange(1), help="Show so many heads only.")
@checkpoint_option
@device_option
@revision_option
@pickle_option
@json_option
def heads(
    source: Path,
    text: str | None,
    file: Path | None,
    second: str | None,
    cut: bool,
    sort: str | None,
    count: int | None,
    checkpoint: str,
    device: str,
    revision: str | None,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """List every head, as layer.head, with its scores and its kind.

    SOURCE is a recording; or a model of any architecture (a run, a directory in Hugging Face
    format, a hub name), whose attention on TEXT is then recorded first.
    """
    if source.is_file() or (source.suffix == SUFFIX and not source.is_dir()):
        if cut or text is not None or file is not None or second is not None:
            raise click.UsageError("A recording has its text already: give no other, nor --cut.")
        recording = load(source)
    else:
        words = read_text(text, file)
        opened = open_model(
            source,
            checkpoint=checkpoint,
            device=device,
            revision=revision,
            allow_pickle=allow_pickle,
        )
        recording = record_text(opened, words, second, cut)
    with share_done("reading the maps") as tell:
        rows = rows_of(recording, tell)
    if not rows:
        raise RunError(
            f"nothing was recorded in {source}",
            expected="at least one call of attention",
            remedy="record again, with the model's pass inside the `with` block",
        )
    if sort is not None:
        rows.sort(key=lambda row: -1.0 if row[sort] is None else row[sort], reverse=True)
    if as_json:
        click.echo(json.dumps(rows[:count]))
        return
    console().print(_listed(rows, count))
    console().print(f"\nproof: {proofs.told(recording)}", style="dim", highlight=False)
    for reason in proofs.reasons(recording):
        console().print(reason, style="dim", highlight=False)


def rows_of(
    recording: Recording, progress: Callable[[float], None] = lambda share: None
) -> list[dict[str, Any]]:
    """A row for each head of each call: where it is, its kind and its numbers.

    `progress` is told of the share that is done, 0 to 1.
    """
    rows = []
    for i, call in enumerate(_with_sure_ids(recording)):
        part = _part(progress, i, len(recording))
        rows += [{"call": i, **row} for row in _rows(call, part)]
    return rows


def _with_sure_ids(recording: Recording) -> list[Call]:
    """The calls; of two texts, with the tokens of the one that their module's name says."""
    calls = list(recording)
    if not any(call.kind == "cross" for call in calls):
        return calls
    sides = [{"encoder", "decoder"} & set(call.name.split(".")) for call in calls]
    has_encoder = any("encoder" in side for side in sides)  # else the ids are those it would have
    return [
        call if side and has_encoder else replace(call, ids=None)
        for call, side in zip(calls, sides, strict=True)
    ]


def _rows(call: Call, progress: Callable[[float], None]) -> list[dict[str, Any]]:
    is_refuted = call.proof == "refuted"  # it keeps its place, and shows no number
    numbers = _nothing(call) if is_refuted else head_types.scores(call, progress)
    if call.kind == "cross":
        nothing = torch.full((call.shape[0],), torch.nan)
        numbers = {name: numbers[name] if name in PLACELESS else nothing for name in numbers}
    rows = []
    for i, kind in enumerate(head_types.names(numbers)):
        found = {name: _number(numbers[name][i]) if name in numbers else None for name in NUMBERS}
        where = {"pass_index": call.pass_index, "attention": call.kind}
        head = {"layer": call.layer, "head": call.heads[i], "kind": kind}
        rows.append({**where, **head, "proof": call.proof, "why": call.why, **found})
    return rows


def _nothing(call: Call) -> dict[str, torch.Tensor]:
    return {name: torch.full((call.shape[0],), torch.nan) for name in NUMBERS}


def _part(progress: Callable[[float], None], before: int, parts: int) -> Callable[[float], None]:
    """Tells the share of the whole, where that of one of several parts is told."""
    return lambda share: progress((before + share) / parts)


def _number(value: Any) -> float | None:
    return None if value.isnan() else float(value)


def _listed(rows: list[dict[str, Any]], count: int | None) -> Table:
    """The first rows as a table; what is the same in all, or known in none, has no column."""
    where = [
        name
        for name in ("pass_index", "attention", "proof")
        if len({row[name] for row in rows}) > 1
    ]
    places = {
        tuple(row[name] for name in ("pass_index", "attention", "layer", "head")) for row in rows
    }
    if len(places) < len(rows):
        where.insert(0, "call")
    names = [name for name in NUMBERS if any(row[name] is not None for row in rows)]
    columns = ["head", *(SHORT.get(name, name) for name in (*where, "kind", *names))]
    words = ("head", "map", "kind", "proof")
    made = table(columns, [], [i for i, name in enumerate(columns) if name not in words])
    if where:  # 80 cells have room for all
        made.padding = (0, 1, 0, 0)
    for row in rows[:count]:
        layer = "–" if row["layer"] is None else row["layer"]
        cells = [Text(f"{layer}.{row['head']}"), *(Text(str(row[name])) for name in where)]
        cells.append(Text("–" if row["kind"] == "-" else row["kind"]))
        for name in names:
            shown = "–" if row[name] is None else f"{row[name]:.2f}"
            cells.append(Text(shown, style="bold" if name == row["kind"] else ""))
        made.add_row(*cells)
    return made
