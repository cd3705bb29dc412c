"""`heedful fill`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from heedful.cli.opening import BertRun, open_bert
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
from heedful.fill import Gap
from heedful.fill import fill as guesses
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
    opened = open_bert(model, checkpoint, device, revision=revision, allow_pickle=allow_pickle)
    gaps = guesses(opened.model, opened.tokenizer, text, second, count=count)
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


def _filled(opened: BertRun, texts: list[str], gaps: list[Gap]) -> list[str]:
    """The texts with the likeliest word in each gap."""
    [mask] = opened.tokenizer.pieces([opened.tokenizer.special["mask"]])
    words = iter(gaps)
    found = []
    for text in texts:
        line, *rest = text.split(mask)
        for part in rest:
            word = next(words).guesses[0].word
            goes_on = word.startswith("##")  # a piece within a word: it joins the one before
            line = (line.rstrip() if goes_on else line) + word.removeprefix("##") + part
        found.append(line)
    return found
