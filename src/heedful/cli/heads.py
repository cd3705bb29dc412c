"""`heedful heads`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from heedful.cli.opening import open_run
from heedful.cli.options import (
    checkpoint_option,
    device_option,
    file_option,
    json_option,
    pickle_option,
    read_text,
    revision_option,
)
from heedful.cli.record import record_text
from heedful.recorder import Recording, kinds, load
from heedful.views.terminal import console, table

SHORT = {"previous": "prev", "induction": "induct", "duplicate": "dupl", "distance": "dist"}
MEANS = ("entropy", "distance")  # of the summary, shown beside the scores
DEFINITIONS = "\n".join(
    f"  {name}: {kind.definition}; {kind.source}" for name, kind in kinds.KINDS.items()
)
EXAMPLE = f"""\b
Examples:
  heedful heads first.safetensors
  heedful heads runs/first "the cat sat, and the cat sat" --sort induction --count 10

\b
Scores, from 0 to 1, each the mean over the queries that have a choice:
{DEFINITIONS}
  entropy: in nats; distance: in tokens; both means over the queries.
A head is called by its highest score where that is 0.4 or more.
"""


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@click.option(
    "--sort",
    type=click.Choice([*kinds.KINDS, *MEANS]),
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
    sort: str | None,
    count: int | None,
    checkpoint: str,
    device: str,
    revision: str | None,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """List every head, as layer.head, with its scores and its kind.

    SOURCE is a recording; or a model, whose attention on TEXT is then recorded first.
    """
    if source.is_file():
        recording = load(source)
    else:
        words = read_text(text, file)
        opened = open_run(source, checkpoint, device, revision=revision, allow_pickle=allow_pickle)
        recording = record_text(opened, words)
    rows = rows_of(recording)
    if sort is not None:
        rows.sort(key=lambda row: -1.0 if row[sort] is None else row[sort], reverse=True)
    rows = rows[:count]
    if as_json:
        click.echo(json.dumps(rows))
        return
    _show(rows)


def rows_of(recording: Recording) -> list[dict[str, Any]]:
    """A row for each head of each call: where it is, its kind and its numbers."""
    rows = []
    for call in recording:
        summary, scores = call.summary(), kinds.scores(call)
        numbers = scores | {name: summary[name] for name in MEANS}
        for head, kind in enumerate(kinds.names(scores)):
            found = {name: _number(values[head]) for name, values in numbers.items()}
            rows.append({"layer": call.layer, "head": head, "kind": kind, **found})
    return rows


def _number(value: Any) -> float | None:
    return None if value.isnan() else float(value)


def _show(rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name not in ("layer", "head", "kind")]
    columns = ["head", "kind", *(SHORT.get(name, name) for name in names)]
    made = table(columns, [], numbers=range(2, len(columns)))
    for row in rows:
        cells = [Text(f"{row['layer']}.{row['head']}"), Text(row["kind"])]
        for name in names:
            shown = "–" if row[name] is None else f"{row[name]:.2f}"
            cells.append(Text(shown, style="bold" if name == row["kind"] else ""))
        made.add_row(*cells)
    console().print(made)
