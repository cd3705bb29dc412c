"""The command `heedful translate`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.input_texts import cut_option, file_option, notices, read_text
from heedful.cli.options import (
    SectionedCommand,
    check_model,
    json_option,
    opening_options,
    passed_fields,
    settings_of,
)
from heedful.errors import TextError
from heedful.models.sampling import Search

if TYPE_CHECKING:
    from heedful.loaded import LoadedSeq2Seq
    from heedful.translate import Translation

BATCH = 32  # lines translated together
UNCERTAIN = 0.1  # warn if the second target is at least this many times as probable as the first
EXAMPLE = """\b
Examples:
  heedful translate runs/dates "the 3rd of May 1987"
  heedful translate runs/dates "the 3rd of May 1987" --beams 1
  heedful translate runs/dates --file dates.txt
  heedful translate runs/dates "3 May 1987" --all
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLE)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@cut_option
@click.option(
    "--all", "every", is_flag=True, help="Show every target of the beam search, with its score."
)
@opening_options("checkpoint", "device")
@json_option
@settings_of("Search", Search())
def translate(
    run: Path, text: str | None, file: Path | None, cut: bool, every: bool, opening: dict[str, Any],
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Translate TEXT with the model RUN, which was trained by `heedful train --pairs`.

    Each line of TEXT is translated separately into one line; a blank line stays blank.
    """
    lines = [line.strip() for line in read_text(text, file).removesuffix("\n").split("\n")]
    search = Search(**passed_fields(Search, options))
    check_model(run, opening)
    from heedful.loaded import LoadedSeq2Seq, TruncationWarning, open_as
    from heedful.translate import translate as translations

    opened = open_as(LoadedSeq2Seq, run, **opening)
    with notices(TruncationWarning):
        sources = [_ids(opened, line, cut, n + 1, len(lines)) for n, line in enumerate(lines)]
    for start in range(0, len(lines), BATCH):
        batch = sources[start : start + BATCH]
        texts = [ids for ids in batch if ids]
        results = iter(translations(opened.model, texts, search) if texts else ())
        for line, ids in zip(lines[start:], batch, strict=False):
            targets = next(results) if ids else []
            if as_json:
                click.echo(json.dumps(_as_data(opened, line, targets)))
            elif every and targets:
                _print_all(opened, targets)
            else:  # a blank line for a blank line
                click.echo(opened.tokenizer.decode(targets[0].ids) if targets else "")
                _warn_if_uncertain(opened, line, targets)


def _ids(opened: LoadedSeq2Seq, line: str, cut: bool, number: int, lines: int) -> list[int]:
    """Return a line's ids. Of several lines, a blank line has none, and errors name the line."""
    if lines > 1 and not line:
        return []
    try:
        return opened.source(line, cut=cut)
    except TextError as error:
        if lines == 1:
            raise
        raise TextError(f"line {number:,}: {error}") from error


def _warn_if_uncertain(opened: LoadedSeq2Seq, line: str, targets: list[Translation]) -> None:
    """Warn on standard error if the two best targets of a line are nearly as probable."""
    if len(targets) < 2:
        return
    ratio = math.exp(targets[1].log_prob - targets[0].log_prob)
    if ratio >= UNCERTAIN:
        second = opened.tokenizer.decode(targets[1].ids)
        click.echo(
            f"uncertain: for {line!r}, {second!r} is {ratio:.1f} times as probable; --all shows "
            "all targets with their scores",
            err=True,
        )


def _as_data(opened: LoadedSeq2Seq, line: str, targets: list[Translation]) -> dict[str, Any]:
    return {
        "source": line,
        "targets": [
            {
                "text": opened.tokenizer.decode(target.ids),
                "log_probability": target.log_prob,
                "score": target.score,
                "finished": target.finished,
            }
            for target in targets
        ],
    }


def _print_all(opened: LoadedSeq2Seq, targets: list[Translation]) -> None:
    from heedful.views.terminal import console, table

    rows = [
        (f"{target.score:.3f}", f"{target.log_prob:.3f}", opened.tokenizer.decode(target.ids))
        for target in targets
    ]
    columns = ["score", "log-probability", "target"]
    console().print(table(columns, rows, numbers=[0, 1]))
