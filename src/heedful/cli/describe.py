"""`heedful describe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.options import check_model, json_option, opening_options, refuse
from heedful.cli.output_paths import check_picture
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from heedful.models import Description

EXAMPLE = """\b
Examples:
  heedful describe runs/first
  heedful describe runs/first --out gpt.svg
  heedful describe runs/first --block --out block.png
  heedful describe google-bert/bert-base-uncased --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Draw the model too: a file that ends in .png, .svg or .pdf.",
)
@click.option(
    "--block", is_flag=True, help="Draw one block alone, each step of its attention in it."
)
@click.option("--overwrite", is_flag=True, help="Replace the picture that is there.")
@opening_options("revision", "allow_pickle")
@json_option
def describe(
    model: Path,
    out: Path | None,
    block: bool,
    overwrite: bool,
    opening: dict[str, Any],
    as_json: bool,
) -> None:
    """Show what MODEL is: its settings, its parameters by part, and the shapes of a batch.

    MODEL is a run directory, a directory in Hugging Face format, or a hub name. Of an architecture
    that heedful does not build, the settings and the parameters are shown. Nothing is written but
    the file of --out.
    """
    if out is None:
        refuse("is for a picture: give its file with --out.", block=block, overwrite=overwrite)
    directory = check_model(model, opening)
    if out is not None:
        check_picture(out, overwrite)
    told, shape = _told(directory, opening["allow_pickle"])
    if out is not None:
        _draw(model, told, shape, out, block)
    if as_json:
        from heedful.views import model_summary

        picture = None if out is None else str(out)
        click.echo(json.dumps({**model_summary.as_json(told), "picture": picture}))
        return
    _show(told, model, out)


def _told(directory: Path, allow_pickle: bool) -> tuple[Description, nn.Module | None]:
    """What a model is, and the model without its weights, where it is one of ours."""
    from heedful.models import describe as told_of
    from heedful.models import describe_files, model_shape
    from heedful.models.huggingface.checkpoints import foreign_name

    foreign = foreign_name(directory)
    if foreign is not None:
        return describe_files(directory, foreign, allow_pickle=allow_pickle), None
    shape = model_shape(directory, allow_pickle=allow_pickle)
    return told_of(shape), shape


def _draw(source: Path, told: Description, shape: nn.Module | None, out: Path, block: bool) -> None:
    from heedful.pictures.saving import save
    from heedful.views.model_diagram import draw_block, draw_model

    if shape is None:
        raise ArgumentError(
            f"{source} holds a {told.kind}, which cannot be drawn",
            expected="a GPT, a BERT or an encoder–decoder that heedful builds",
            cause="how its parts follow one another is in its own code",
            remedy="leave out --out: its settings and parameters are shown",
        )
    save((draw_block if block else draw_model)(shape), out)


def _show(told: Description, source: Path, out: Path | None) -> None:
    from rich.text import Text

    from heedful.cli.suggested_commands import suggestion
    from heedful.views.model_summary import show
    from heedful.views.terminal import console

    screen = console()
    show(screen, told)
    if out is not None:
        screen.print(Text(f"\n{out}"), soft_wrap=True)
    elif told.passages:
        line = f"\nDraw it: {suggestion('describe', source, '--out', 'model.svg')}"
        screen.print(Text(line, "dim"), soft_wrap=True)
