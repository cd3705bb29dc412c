"""The command `heedful fill`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from heedful.cli.input_texts import file_option, read_text, second_option
from heedful.cli.options import check_model, json_option, opening_options

UNCERTAIN = 0.1  # below this probability, the likeliest word of a mask is not put into the text
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
    "--count", type=click.IntRange(1), metavar="N", default=5, show_default=True,
    help="Number of words for each [MASK].",
)  # fmt: skip
@json_option
@opening_options()
def fill(
    model: Path, text: str | None, file: Path | None, second: str | None, count: int, as_json: bool,
    opening: dict[str, Any],
) -> None:  # fmt: skip
    """Show the most probable words for each [MASK] in TEXT.

    MODEL is a BERT: a training run, a directory in Hugging Face format, or a hub name.
    """
    text = read_text(text, file)
    check_model(model, opening)
    from heedful.fill import fill as fill_gaps
    from heedful.fill import filled
    from heedful.loaded import LoadedBert, open_as
    from heedful.views.terminal import console, table

    opened = open_as(LoadedBert, model, **opening)
    gaps = fill_gaps(opened.model, opened.tokenizer, text, second, count=count)
    lines = filled(opened.tokenizer, [text] if second is None else [text, second], gaps)
    if as_json:
        masks = [
            {"position": gap.position, "words": [guess._asdict() for guess in gap.guesses]}
            for gap in gaps
        ]
        result = {"text": text, "second": second, "masks": masks, "filled": lines}
        click.echo(json.dumps(result))
        return
    rows = [
        (str(number), guess.word, f"{100 * guess.probability:.1f} %")
        for number, gap in enumerate(gaps, 1)
        for guess in gap.guesses
    ]
    console().print(table(["mask", "word", "probability"], rows, numbers=[0, 2]))
    click.echo()
    least = min(gap.guesses[0].probability for gap in gaps)
    if least < UNCERTAIN:
        click.echo(
            f"No filled text: the likeliest word of a mask has only {100 * least:.1f} %. Such a "
            "model was trained too little, or the text is unlike its training text."
        )
        return
    for line in lines:
        click.echo(line)
