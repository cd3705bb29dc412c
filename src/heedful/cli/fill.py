"""`heedful fill`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from heedful.cli.cut import cut_option, cuts_told
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
from heedful.errors import TextError
from heedful.fill import Gap, fill_inputs
from heedful.opened import OpenedBert, open_as
from heedful.text import Inputs
from heedful.views.terminal import console, table

EXAMPLE = """\b
Examples:
  heedful fill google-bert/bert-base-uncased "The capital of France is [MASK]."
  heedful fill my-bert "A [MASK] in the [MASK]." --count 3
  heedful fill my-bert "Where is he?" --second "He is at [MASK]." --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@second_option
@cut_option
@click.option(
    "--count", type=click.IntRange(1), default=5, show_default=True, help="Words for each [MASK]."
)
@json_option
@checkpoint_option
@revision_option
@pickle_option
@device_option
def fill(
    model: Path,
    text: str | None,
    file: Path | None,
    second: str | None,
    cut: bool,
    count: int,
    as_json: bool,
    checkpoint: str,
    revision: str | None,
    allow_pickle: bool,
    device: str,
) -> None:
    """Show the likeliest words for each [MASK] in TEXT.

    MODEL is a BERT: its directory, in Hugging Face format or our own, or its hub name.
    """
    text = read_text(text, file)
    opened = open_as(
        OpenedBert,
        model,
        checkpoint=checkpoint,
        device=device,
        revision=revision,
        allow_pickle=allow_pickle,
    )
    with cuts_told():
        inputs = opened.inputs(text, second, cut=cut)
    _check_no_gap_is_cut(opened, text, second, inputs)
    gaps = fill_inputs(opened.model, opened.tokenizer, inputs, count=count)
    texts = [text] if second is None else [text, second]
    filled = _filled(opened, texts, gaps)
    if as_json:
        masks = [
            {"position": gap.position, "words": [guess._asdict() for guess in gap.guesses]}
            for gap in gaps
        ]
        about = {"text": text, "second": second, "masks": masks, "filled": filled}
        click.echo(json.dumps(about, ensure_ascii=False))
        return
    rows = [
        (str(number), guess.word, f"{100 * guess.probability:.1f} %")
        for number, gap in enumerate(gaps, 1)
        for guess in gap.guesses
    ]
    console().print(table(["mask", "word", "probability"], rows, numbers=[0, 2]))
    click.echo()
    for line in filled:
        click.echo(line)


def _check_no_gap_is_cut(opened: OpenedBert, text: str, second: str | None, read: Inputs) -> None:
    """Refuse a gap in a part of the text that the model does not read.

    Raises:
        TextError: one is there.
    """
    mask = opened.tokenizer.special.get("mask", -1)
    gaps = opened.tokenizer.inputs(text, second).ids.count(mask)
    lost = gaps - read.ids.count(mask)
    if lost:
        [name] = opened.tokenizer.pieces([mask])
        most = opened.model.config.context_length
        raise TextError(
            f"{lost:,} of {gaps:,} {name} in what is cut",
            expected=f"each within the model's context of {most:,} tokens",
            remedy="give the text around it alone",
        )


def _filled(opened: OpenedBert, texts: list[str], gaps: list[Gap]) -> list[str]:
    """The texts with the likeliest word in each gap."""
    mask = opened.tokenizer.decode([opened.tokenizer.special["mask"]])
    words = iter(gaps)
    found = []
    for text in texts:
        line, *rest = text.split(mask)
        for part in rest:
            line = opened.tokenizer.joined(line, next(words).guesses[0].id) + part
        found.append(line)
    return found
