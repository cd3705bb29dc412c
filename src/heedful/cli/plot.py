"""`heedful plot`."""

from __future__ import annotations

from pathlib import Path

import click

from heedful.cli.cut import cut_option, cuts_told
from heedful.cli.options import (
    checkpoint_option,
    device_option,
    file_option,
    pickle_option,
    read_text,
    revision_option,
    runs,
    second_option,
)
from heedful.cli.training import draw_losses
from heedful.errors import ArgumentError
from heedful.files import make_directory
from heedful.opened import Attention, OpenedOurs, open_ours

PICTURES = ("heads", "scores", "positions", "loss")
MOST = 36  # maps that are drawn where no layer and head is chosen
EXAMPLE = """\b
Examples:
  heedful plot runs/first "The import statement finds a module"
  heedful plot runs/first "The import statement" --layers 0,3 --heads 1,2 --format svg
  heedful plot runs/first --only positions --only loss
  heedful plot openai-community/gpt2 "The import statement" --layers 5
  heedful plot runs/dates "the 3rd of May 1987"
  heedful plot google-bert/bert-base-uncased "Transformers, robots in disguise." --layers 0
"""


@click.command(epilog=EXAMPLE)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@second_option
@cut_option
@click.option("--layers", metavar="LIST", help="Layers to draw, from 0: 0,3 or 0-2.")
@click.option("--heads", metavar="LIST", help="Heads to draw, from 0: 1,4 or 0-3.")
@click.option(
    "--only",
    type=click.Choice(PICTURES),
    multiple=True,
    help="Draw only this; repeatable. heads: heat maps; scores: one head's scores before and "
    "after the mask; positions: the positional table; loss: the loss curve.",
)
@click.option("--format", "suffix", type=click.Choice(["png", "svg", "pdf"]), default="png")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The pictures' folder [RUN/pictures; for a hub name, pictures].",
)
@checkpoint_option
@revision_option
@pickle_option
@device_option
def plot(
    run: Path,
    text: str | None,
    file: Path | None,
    second: str | None,
    cut: bool,
    layers: str | None,
    heads: str | None,
    only: tuple[str, ...],
    suffix: str,
    out: Path | None,
    checkpoint: str,
    revision: str | None,
    allow_pickle: bool,
    device: str,
) -> None:
    """Draw where the heads of the model RUN look, on TEXT: rows are queries, columns keys.

    RUN is a directory made by `heedful train`, a GPT-2 or BERT in Hugging Face format, or its hub
    name. One trained on pairs translates TEXT: rows are the target's tokens as they are written,
    columns the source's; ■ is the end.
    """
    if out is not None and out.is_file():
        raise ArgumentError(
            f"--out {out}, a file",
            expected="a folder; the pictures' names in it are given",
            remedy="choose another --out, or leave it out",
        )
    opened = open_ours(
        run, checkpoint=checkpoint, device=device, revision=revision, allow_pickle=allow_pickle
    )
    kinds = _pictures(opened, only)
    needs_text = bool({"heads", "scores"} & set(kinds))
    folder = out or (run if run.is_dir() else Path()) / "pictures"
    make_directory(folder)
    if needs_text:
        words = read_text(text, file)
        chosen = choose_heads(opened, layers, heads)
        with cuts_told():
            attention = opened.attention(words, chosen, second, cut=cut)
        for path in draw_attention(attention, kinds, folder, suffix):
            click.echo(path)
        tell_of_fonts([*attention.queries, *attention.keys])
    if "positions" in kinds:
        click.echo(draw_positions(opened, folder / f"positions.{suffix}"))
    if "loss" in kinds:
        curve = draw_losses(opened.directory, folder / f"loss.{suffix}")
        click.echo(curve or f"{run} has no metrics to draw a loss curve from", err=curve is None)


def _pictures(opened: OpenedOurs, only: tuple[str, ...]) -> tuple[str, ...]:
    """Those that were asked for; without a choice all, but no two that are the same."""
    if not opened.hides and "scores" in only:
        raise ArgumentError(
            f"--only scores of a {type(opened.model).__name__}",
            expected="a GPT",
            cause="no token is hidden from another here: before and after the mask all is the same",
            remedy="draw the weights with --only heads",
        )
    return only or tuple(kind for kind in PICTURES if opened.hides or kind != "scores")


def choose_heads(
    opened: OpenedOurs, layers: str | None, heads: str | None
) -> list[tuple[int, int]]:
    """Pairs (layer, head); without a choice all, or only the last layer's where they are many."""
    every_layer = parse(layers, opened.layers, "layer")
    every_head = parse(heads, opened.heads, "head")
    if layers is None and heads is None and len(every_layer) * len(every_head) > MOST:
        every_layer = every_layer[-1:]
    return [(layer, head) for layer in every_layer for head in every_head]


def parse(text: str | None, size: int, what: str) -> list[int]:
    """Numbers from a list such as 0,2-4; all of them where there is none.

    >>> parse("0,2-4", 6, "head")
    [0, 2, 3, 4]
    """
    if text is None:
        return list(range(size))
    found = runs(text)
    if found is None:
        raise ArgumentError(f"{what}s {text!r}", expected="a list such as 0,2 or 0-3")
    if any(run.stop > size for run in found):
        raise ArgumentError(f"{what}s {text!r}", expected=f"{what}s from 0 to {size - 1}")
    return [number for run in found for number in run]


def draw_attention(
    attention: Attention, kinds: tuple[str, ...], folder: Path, suffix: str
) -> list[Path]:
    """The heat maps of the chosen heads, and the scores of the first of them."""
    from heedful.pictures import plots

    heads, queries, keys = attention
    paths = []
    if "heads" in kinds:
        figure = plots.heatmaps(
            [steps.weights for steps in heads.values()],
            queries,
            key_tokens=keys,
            titles=[f"layer {layer}, head {head}" for layer, head in heads],
            allowed=next(iter(heads.values())).masked.isfinite(),
        )
        paths.append(plots.save(figure, folder / f"heads.{suffix}"))
    if "scores" in kinds:
        (layer, head), steps = next(iter(heads.items()))
        title = f"layer {layer}, head {head}"
        figure = plots.scores(steps.scaled, steps.masked, queries, key_tokens=keys, title=title)
        paths.append(plots.save(figure, folder / f"scores.{suffix}"))
    return paths


def tell_of_fonts(texts: list[str]) -> None:
    """A line on standard error where no font here draws a text."""
    from heedful.pictures.labels import hint

    missing = hint(texts)
    if missing:
        click.echo(missing, err=True)


def draw_positions(opened: OpenedOurs, path: Path) -> Path:
    """The table that tells the model where a token stands; for rotary positions, its cosines."""
    from heedful.pictures import plots

    kind, table = opened.positions
    words = {}
    if kind == "rotary":
        words = {
            "columns": "pair of dimensions, the same in each head",
            "meaning": "cosine of the angle by which the pair is turned",
        }
    return plots.save(plots.positions(table, title=f"{kind} positions", **words), path)
