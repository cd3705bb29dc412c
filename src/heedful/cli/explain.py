"""`heedful explain`."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from heedful.cli.cut import cut_option, cuts_told
from heedful.cli.options import (
    checkpoint_option,
    device_option,
    file_option,
    json_option,
    read_text,
)
from heedful.explain import VARIANTS, Explanation, Stage, explain_model
from heedful.explain import explain as explain_text
from heedful.opened import OpenedGPT, open_as
from heedful.views.terminal import console
from heedful.views.walk import follow, show

WHOLE = 1_000_000  # numbers of a step that JSON gives; of larger ones, the corners
CORNER = (*range(4), *range(-3, 0))
EXAMPLE = """\b
Examples:
  heedful explain "Your journey starts with one step"
  heedful explain "Your journey starts with one step" --query journey
  heedful explain "The cat sat on the mat" --variant multihead --heads 2 --dim 8
  heedful explain "a cup of tea" --variant cross --memory "une tasse de thé"
  heedful explain "The import statement" --model runs/first --layer 1 --head 2
"""


@click.command(epilog=EXAMPLE)
@click.argument("text", required=False)
@file_option
@cut_option
@click.option(
    "--variant", type=click.Choice(list(VARIANTS)), help="The kind of attention [simple]."
)
@click.option("--memory", metavar="TEXT", help="The second text, which cross-attention looks at.")
@click.option("--heads", type=click.IntRange(1), help="Of multihead [2] and cross [1].")
@click.option(
    "--dim",
    type=click.IntRange(1),
    help="Width of a token's vector [3; multihead 4, projected 128].",
)
@click.option(
    "--head-dim", type=click.IntRange(1), help="Width of a query [dim / heads; projected dim / 8]."
)
@click.option("--seed", type=int, help="For other vectors and weights [0].")
@click.option("--positions", is_flag=True, help="Add sines and cosines of each token's place.")
@click.option(
    "--model", type=click.Path(path_type=Path), help="Show a trained model's numbers: a run."
)
@click.option("--layer", type=click.IntRange(0), help="Of the model, from 0 [0].")
@click.option("--head", type=click.IntRange(0), default=0, help="Which to show, from 0 [0].")
@click.option("--query", metavar="WORD", help="Follow this token alone; @4 is the one at place 4.")
@checkpoint_option
@device_option
@json_option
def explain(
    text: str | None,
    file: Path | None,
    cut: bool,
    model: Path | None,
    layer: int | None,
    head: int,
    query: str | None,
    checkpoint: str,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Show every step of attention on TEXT, with its numbers.

    Words are the tokens, and their vectors and weights are drawn from a seed; with --model, tokens
    and numbers are those of a trained model.
    """
    given = {name: value for name, value in options.items() if value not in (None, False)}
    _check_usage(model, layer, cut, given)
    words = read_text(text, file)
    if model is not None:
        explanation = _of_model(model, words, cut, layer or 0, head, checkpoint, device)
    else:
        explanation = explain_text(words, head=head, **given)
    places = None if query is None else explanation.places(query)
    if as_json:
        click.echo(json.dumps(_as_json(explanation, places), ensure_ascii=False))
        return
    screen = console()
    if places is None:
        show(screen, explanation)
        _next(explanation, model)
    else:
        follow(screen, explanation, places)


def _check_usage(model: Path | None, layer: int | None, cut: bool, given: dict[str, Any]) -> None:
    variant = given.get("variant", "simple")
    if model is not None and given:
        name = next(iter(given)).replace("_", "-")
        raise click.UsageError(f"--model has its own numbers: --{name} is for the variants.")
    if model is None and layer is not None:
        raise click.UsageError("--layer is for --model; a variant is one layer.")
    if model is None and cut:
        raise click.UsageError("--cut is for --model; a variant reads a text of any length.")
    if variant == "cross" and "memory" not in given:
        raise click.UsageError("--variant cross looks at a second text: give it with --memory.")
    if variant != "cross" and "memory" in given:
        raise click.UsageError("--memory is the second text of --variant cross.")


def _of_model(
    directory: Path, text: str, cut: bool, layer: int, head: int, checkpoint: str, device: str
) -> Explanation:
    remedy = "see where it looks with `heedful plot`, and its heads with `heedful heads`"
    opened = open_as(OpenedGPT, directory, checkpoint=checkpoint, device=device, remedy=remedy)
    with cuts_told():
        [ids], _, pieces = opened.read(text, cut=cut)
    return explain_model(opened.model, ids, pieces or [], layer=layer, head=head)


def _as_json(found: Explanation, places: list[int] | None) -> dict[str, Any]:
    """All of an explanation; where a query is followed, its rows alone."""
    about: dict[str, Any] = {
        "title": found.title,
        "notes": found.notes,
        "tokens": found.tokens,
        "memory": found.memory,
        "heads": found.heads,
        "head": found.head,
    }
    if places is not None:
        about["query"] = {"token": found.tokens[places[0]], "place": places[0], "places": places}
    row = None if places is None else places[0]
    return {**about, "steps": [_step(stage, row) for stage in found.stages]}


def _step(stage: Stage, row: int | None) -> dict[str, Any]:
    """A step with its numbers; `indices` says which rows and columns these are."""
    *_, high, wide = stage.shape
    rows, columns = range(high), range(wide)
    if row is not None and stage.rows == "tokens" and stage.name not in ("key", "value"):
        rows = range(row, row + 1)
    whole = math.prod(stage.shape[:-2]) * len(rows) * wide <= WHOLE
    chosen = (rows, columns) if whole else (_corner(rows), _corner(columns))
    return {
        "name": stage.name,
        "shape": stage.shape,
        "formula": stage.formula,
        "sentence": stage.sentence,
        "axes": [stage.rows, stage.columns],
        "whole": whole and len(rows) == high,
        "indices": [list(part) for part in chosen],
        "numbers": _finite(stage.part(*chosen).tolist()),
    }


def _corner(indices: range) -> list[int]:
    return list(indices) if len(indices) <= len(CORNER) else [indices[i] for i in CORNER]


def _finite(numbers: Any) -> Any:
    """The same nested lists with null for −inf, which JSON does not know."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return numbers if math.isfinite(numbers) else None


def _next(explanation: Explanation, model: Path | None) -> None:
    """What else one can look at."""
    screen = console()
    word = explanation.tokens[min(1, len(explanation.tokens) - 1)]
    screen.print(Text(f"\nFollow one token: --query {shlex.quote(word)}", "dim"), soft_wrap=True)
    if model is None:
        shown = explanation.title.partition(":")[0]
        others = ", ".join(variant for variant in VARIANTS if variant != shown)
        screen.print(Text(f"Go on with --variant: {others}.", "dim"), soft_wrap=True)
