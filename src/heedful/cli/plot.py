"""The command `heedful plot`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import sequence_choice
from heedful.cli.input_texts import (
    is_recording,
    read_text,
    record_text,
    refuse_with_recording,
    text_options,
    verify_option,
)
from heedful.cli.options import (
    check_model,
    heads_option,
    layers_option,
    opening_options,
    refuse,
    sequence_option,
)
from heedful.cli.output_paths import picture_paths
from heedful.cli.watched_heads import plot_scores_over_steps, was_watched
from heedful.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.recording import Recording, Sequence

PICTURES = ("heads", "scores", "positions", "loss", "watched")
TEXT_PICTURES = ("heads", "scores")  # pictures that need a text
DOTS = 200  # pixels per inch of a PNG
EXAMPLE = """\b
Examples:
  heedful plot runs/first "The import statement finds a module"
  heedful plot runs/first "The import statement" --layers 0,3 --heads 1,2 --out import.svg
  heedful plot runs/first --only positions --only loss
  heedful plot runs/seen
  heedful plot first.safetensors --layers 2 --scale log --title "Layer 2"
  heedful plot google-bert/bert-base-uncased "Where is he?" --second "At home." --layers 0
  heedful plot runs/dates "the 3rd of May 1987" --attention cross
  heedful plot HuggingFaceTB/SmolLM2-135M --file chapter.txt --size 16 --out chapter.pdf
  heedful plot microsoft/mpnet-base "The cat sat." --verify
  heedful plot swin.safetensors --part 3

Each row of the picture is a layer, each column a head. Small maps have no labels: select one layer,
fewer heads or a larger --size to see the tokens. A repeated token is labelled with its position.
Striped cells are masked. A map of more than a few hundred tokens is pooled: each cell shows the
largest of several weights, and a note in the picture states this. Architectures that heedful does
not build need the transformers library: pip install 'transformers>=5.0'
"""


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@text_options
@layers_option
@heads_option
@click.option(
    "--attention", type=click.Choice(["encoder", "decoder", "cross"]),
    help="Draw only this kind of attention of an encoder–decoder [all three].",
)  # fmt: skip
@click.option(
    "--pass", "pass_index", type=int, metavar="N",
    help="Draw only this forward pass of a recording, counted from 0 [all; the passes of a "
    "generation are joined].",
)  # fmt: skip
@sequence_option("0")
@click.option(
    "--part", type=click.IntRange(0), default=0, metavar="N",
    help="Part to draw, counted from 0, if the sequence has several parts, such as windows [0].",
)  # fmt: skip
@click.option(
    "--only", type=click.Choice(PICTURES), multiple=True,
    help="Picture to draw; repeatable. heads: attention weights; scores: scores of the first "
    "selected head, before and after the mask; positions: the position vectors; loss: the loss "
    "curve of a run; watched: head scores over the steps of a run trained with --watch. positions, "
    "loss and watched take no TEXT. [watched for a run with --watch and no TEXT, else heads]",
)  # fmt: skip
@click.option("--title", help="Title above the picture [none].")
@click.option(
    "--scale", type=click.Choice(["linear", "sqrt", "log"]),
    help="Scale from weights to colours [linear for up to 10 tokens, else sqrt].",
)  # fmt: skip
@click.option(
    "--highest", type=click.FloatRange(0, min_open=True), metavar="X",
    help="Weight at the upper end of the colour scale [the largest weight].",
)  # fmt: skip
@click.option(
    "--size", type=click.FloatRange(0, min_open=True), metavar="INCHES",
    help=f"Width of the picture; a PNG has {DOTS} pixels per inch [9; more for many heads].",
)  # fmt: skip
@click.option(
    "--values/--no-values", default=None,
    help="Write the weights into the cells [for up to 10 tokens, if the weights fit].",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="PATH",
    help="File that ends in .png, .svg or .pdf, or a folder for PNG files, which are numbered "
    "[RUN/pictures for a training run, else pictures].",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace existing pictures, instead of numbering.")
@verify_option
@opening_options()
def plot(
    source: Path, text: str | None, file: Path | None, second: str | None, cut: bool,
    layers: list[int] | None, heads: list[int] | None, attention: str | None,
    pass_index: int | None, sequence: int | None, part: int, only: tuple[str, ...],
    title: str | None, scale: str | None, highest: float | None, size: float | None,
    values: bool | None, out: Path | None, overwrite: bool, verify: bool, opening: dict[str, Any],
) -> None:  # fmt: skip
    """Draw attention maps: rows are queries, columns are keys.

    SOURCE is a recording, or a model of any architecture (a training run, a directory in Hugging
    Face format, or a hub name) that reads TEXT. An encoder–decoder first translates TEXT; its
    encoder, decoder and cross-attention are drawn. In cross-attention, rows are target tokens and
    columns source tokens.

    A run trained with --watch needs no TEXT: its losses and, below them, its head scores are drawn
    over the training steps.
    """
    inputs: dict[str, Any] = {"text": text, "file": file, "second": second}
    has_recording = is_recording(source)
    has_no_text = all(value is None for value in inputs.values())
    default = "watched" if has_no_text and not has_recording and was_watched(source) else "heads"
    kinds = tuple(dict.fromkeys(only)) or (default,)
    text_kinds = {*kinds} & {*TEXT_PICTURES}
    if has_recording:
        refuse_with_recording(source, **inputs, cut=cut, verify=verify)
        if len(text_kinds) < len(kinds):
            raise click.UsageError("positions, loss and watched need a model, not a recording.")
        from heedful.recording import load

        recording = load(source)  # first report an invalid recording, then an existing picture
    else:
        if not text_kinds:
            reason = "has no effect on positions, loss and watched."
            refuse(reason, **inputs, cut=cut, verify=verify)
        words = read_text(text, file) if text_kinds else ""
        check_model(source, opening)
    paths = picture_paths(source, kinds, out, overwrite)
    figures: dict[str, Any] = {}
    if text_kinds:
        if not has_recording:
            from heedful.loaded import open_model

            options: dict[str, Any] = {"layers": layers, "heads": heads, "verify": verify}
            opened = open_model(source, **opening)
            recording = record_text(opened, words, second, cut=cut, **options)
        calls = sequence_choice.sequence_part(recording, sequence or 0, part)
        selection = {"layers": layers, "heads": heads, "part": attention, "pass_index": pass_index}
        style = {"title": title, "scale": scale, "highest": highest, "size": size, "values": values}
        figures |= _text_figures(calls, kinds, selection, style)
        warn_of_missing_fonts(
            token
            for call in calls
            for tokens in (call.query_tokens, call.key_tokens)
            for token in tokens or ()
        )
    if "positions" in kinds:
        from heedful.loaded import open_heedful

        figures["positions"] = positions_figure(open_heedful(source, **opening).positions, title)
    if "watched" in kinds:
        figures["watched"] = plot_scores_over_steps(source, title)
    from heedful.pictures.saving import save

    for kind, figure in figures.items():
        click.echo(save(figure, paths[kind]))
    if "loss" in kinds:
        from heedful.cli.run_training import draw_losses

        if draw_losses(source, paths["loss"]) is None:
            raise RunError(
                f"{source} has no metrics to draw a loss curve from",
                expected="a training run of `heedful train`",
            )
        click.echo(paths["loss"])


def _text_figures(
    calls: Sequence, kinds: Iterable[str], selection: dict[str, Any], style: dict[str, Any]
) -> dict[str, Any]:
    """Draw those of `kinds` that show a recorded sequence; return the figures by kind."""
    from heedful.recording.figure import Selection, scores_picture
    from heedful.views.progress import progress_bar

    figures = {}
    for kind in kinds:
        if kind == "heads":
            with progress_bar("drawing") as report:
                figures[kind] = calls.plot(**selection, progress=report, **style)
        elif kind == "scores":
            figures[kind] = scores_picture(list(calls), Selection(**selection), style.get("title"))
    return figures


def draw_attention(recording: Recording, folder: Path) -> list[Path]:
    """Write pictures of a recording's heads and of its first head's scores into a folder."""
    from heedful.pictures.saving import save

    figures = _text_figures(recording, TEXT_PICTURES, {}, {})
    return [save(figure, folder / f"{kind}.png") for kind, figure in figures.items()]


def positions_figure(positions: tuple[str, Tensor], title: str | None = None) -> Any:
    """Draw the table of position vectors; for rotary positions, the cosines of the angles."""
    from heedful.pictures import plots

    kind, table = positions
    labels = {}
    if kind == "rotary":
        labels = {
            "columns": "pair of dimensions, the same in each head",
            "meaning": "cosine of the angle by which the pair is rotated",
        }
    return plots.positions(table, title=title or f"{kind} positions", **labels)


def warn_of_missing_fonts(texts: Iterable[str]) -> None:
    """Print a warning to standard error if texts have characters that no installed font has."""
    from heedful.pictures.labels import hint

    missing = hint(texts)
    if missing:
        click.echo(missing, err=True)
