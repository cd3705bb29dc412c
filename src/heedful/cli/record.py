"""`heedful record`."""

from __future__ import annotations

from pathlib import Path

import click
import torch

from heedful import recorder
from heedful.cli.opening import Run, open_run
from heedful.cli.options import (
    checkpoint_option,
    device_option,
    file_option,
    pickle_option,
    program,
    read_text,
    revision_option,
)
from heedful.errors import TextError
from heedful.recorder import Recording
from heedful.views.terminal import console, facts

EXAMPLE = """\b
Examples:
  heedful record runs/first "The import statement" --out first.safetensors
  heedful record runs/first --file chapter.txt --out chapter.safetensors --values
"""


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--values", is_flag=True, help="Keep the values too.")
@checkpoint_option
@device_option
@revision_option
@pickle_option
def record(
    model: Path,
    text: str | None,
    file: Path | None,
    out: Path,
    values: bool,
    checkpoint: str,
    device: str,
    revision: str | None,
    allow_pickle: bool,
) -> None:
    """Record what MODEL attends to on TEXT: the causes of every map, in one file.

    MODEL is a run, a directory in Hugging Face format or a hub name. `heedful heads` lists the
    heads of the file, and `heedful.load` opens it in Python.
    """
    words = read_text(text, file)
    opened = open_run(model, checkpoint, device, revision=revision, allow_pickle=allow_pickle)
    recording = record_text(opened, words, values)
    recording.save(out)
    worst = max(check.worst for _, check in recording.certificate())
    heads, tokens, _ = recording[0].shape
    screen = console()
    screen.print(
        facts(
            [
                ("recorded", f"{len(recording)} layers of {heads} heads on {tokens:,} tokens"),
                ("checked", f"weights × values within {worst:.0e} of the model's own output"),
                ("file", f"{out}, {out.stat().st_size / 1e6:,.1f} MB"),
            ]
        )
    )
    screen.print(f"\nNext: {program()} heads {out}", style="dim", soft_wrap=True)


def record_text(opened: Run, text: str, values: bool = False) -> Recording:
    """One pass over a text, recorded, with its pieces."""
    ids = opened.ids(text)
    context = opened.model.config.context
    if ids.shape[1] > context:
        raise TextError(
            f"{ids.shape[1]:,} tokens",
            expected=f"at most the model's context of {context:,}",
            remedy="give a shorter text",
        )
    with torch.inference_mode(), recorder.record(opened.model, values=values) as recording:
        opened.model(ids)
    recording.tokens = [opened.tokenizer.pieces(row) for row in ids.tolist()]
    return recording
