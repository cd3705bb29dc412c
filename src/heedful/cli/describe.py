"""The command `heedful describe`."""

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
    "--out", type=click.Path(path_type=Path), metavar="FILE",
    help="Draw the model into this file, which ends in .png, .svg or .pdf.",
)  # fmt: skip
@click.option(
    "--block", is_flag=True, help="With --out: draw a single block, with each step of attention."
)
@click.option("--overwrite", is_flag=True, help="With --out: replace an existing picture.")
@opening_options("revision", "allow_pickle")
@json_option
def describe(
    model: Path, out: Path | None, block: bool, overwrite: bool, opening: dict[str, Any],
    as_json: bool,
) -> None:  # fmt: skip
    """Show the settings of MODEL, its parameters by part, and the shapes of a batch.

    MODEL is a training run, a directory in Hugging Face format, or a hub name. For architectures
    that heedful does not implement, only settings and parameters are shown.
    """
    if out is None:
        refuse("needs --out, the file of the picture.", block=block, overwrite=overwrite)
    directory = check_model(model, opening)
    if out is not None:
        check_picture(out, overwrite)
    from heedful.models import describe as describe_model
    from heedful.models import describe_files, meta_model
    from heedful.models.huggingface.checkpoints import unsupported_architecture

    allow_pickle, foreign = opening["allow_pickle"], unsupported_architecture(directory)
    shape = None if foreign else meta_model(directory, allow_pickle=allow_pickle)
    if shape is None:  # an architecture that heedful does not build
        description = describe_files(directory, str(foreign), allow_pickle=allow_pickle)
    else:
        description = describe_model(shape)
    if out is not None:
        _draw(model, description, shape, out, block)
    if as_json:
        from heedful.views import model_summary

        picture = None if out is None else str(out)
        click.echo(json.dumps({**model_summary.as_json(description), "picture": picture}))
        return
    _show(description, model, out)


def _draw(
    source: Path, description: Description, shape: nn.Module | None, out: Path, block: bool
) -> None:
    from heedful.pictures.saving import save
    from heedful.views.model_diagram import draw_block, draw_model

    if shape is None:
        raise ArgumentError(
            f"{source} holds a {description.kind}, which cannot be drawn",
            expected="a GPT, a BERT or an encoder–decoder that heedful implements",
            cause="the order of its parts is defined only in its own code",
            remedy="leave out --out to see its settings and parameters",
        )
    save((draw_block if block else draw_model)(shape), out)


def _show(description: Description, source: Path, out: Path | None) -> None:
    from rich.text import Text

    from heedful.cli.suggested_commands import suggestion
    from heedful.views.model_summary import show
    from heedful.views.terminal import console

    screen = console()
    show(screen, description)
    if out is not None:
        screen.print(Text(f"\n{out}"), soft_wrap=True)
    elif description.shape_steps:
        line = f"\nDraw it: {suggestion('describe', source, '--out', 'model.svg')}"
        screen.print(Text(line, "dim"), soft_wrap=True)
