"""`heedful tokenize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heedful.cli.input_texts import file_option, read_text
from heedful.cli.options import json_option
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.text import Tokenizer

SHOWN = 60  # rows of the table
EXAMPLE = """\b
Examples:
  heedful tokenize "Chapter 1: Building Rapport and Capturing" --tokenizer cl100k_base
  heedful tokenize "Attention, please!"
  heedful tokenize --file book.txt --tokenizer runs/first --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("text", required=False)
@file_option
@click.option(
    "--tokenizer",
    "name",
    default="bpe",
    show_default=True,
    help="A tiktoken encoding by name, characters, bpe or wordpiece (trained on the Python "
    "reference), or a model's directory.",
)
@click.option(
    "--vocabulary",
    type=click.IntRange(256),
    default=1024,
    show_default=True,
    help="Of bpe and wordpiece.",
)
@json_option
def tokenize(
    text: str | None, file: Path | None, name: str, vocabulary: int, as_json: bool
) -> None:
    """Show the pieces and ids of TEXT, the vocabulary that it uses and its largest id."""
    text = read_text(text, file)
    tokenizer = _tokenizer(name, vocabulary, text)
    rows = tokenizer.encode(text)
    pieces = tokenizer.pieces(rows)
    ids = [_original(tokenizer, row) for row in rows]
    about: dict[str, int | str] = {
        "tokenizer": name,
        "characters": len(text),
        "tokens": len(ids),
        "distinct": len(set(ids)),
        "largest": max(ids),
        "vocabulary": tokenizer.size,
    }
    if as_json:
        click.echo(json.dumps({**about, "pieces": pieces, "ids": ids}, ensure_ascii=False))
        return
    _show(about, pieces, ids)


def _tokenizer(name: str, vocabulary: int, text: str) -> Tokenizer:
    from heedful.text import (
        BPETokenizer,
        CharacterTokenizer,
        StringSource,
        TiktokenTokenizer,
        TokenizerChoice,
        WordPieceTokenizer,
        load_tokenizer,
        open_encoding,
        python_reference,
    )

    if name == CharacterTokenizer.kind:
        return CharacterTokenizer.train([text])
    if name == BPETokenizer.kind:
        return BPETokenizer.train(StringSource(python_reference()).pieces(), vocabulary)
    if name == WordPieceTokenizer.kind:
        return WordPieceTokenizer.train(StringSource(python_reference()).pieces(), vocabulary)
    if Path(name).exists():
        return load_tokenizer(name)
    try:
        return TiktokenTokenizer.whole(open_encoding(TokenizerChoice(name).name))
    except ArgumentError as error:
        raise ArgumentError(str(error), remedy="or name a run directory that exists") from error


def _original(tokenizer: Tokenizer, row: int) -> int:
    """The encoding's own id, where the tokenizer is a compact one."""
    from heedful.text import TiktokenTokenizer

    return tokenizer.original_id(row) if isinstance(tokenizer, TiktokenTokenizer) else row


def _show(about: dict[str, int | str], pieces: list[str], ids: list[int]) -> None:
    from heedful.views.terminal import console, facts, many, table

    screen = console()
    shown = list(zip(range(len(ids)), pieces, ids, strict=True))[:SHOWN]
    rows = [(str(n), piece, str(token)) for n, piece, token in shown]
    screen.print(table(["position", "piece", "id"], rows, numbers=[0, 2]))
    if len(ids) > SHOWN:
        screen.print(f"… and {len(ids) - SHOWN:,} more (--json gives all)", style="dim")
    screen.print()
    screen.print(
        facts(
            [
                (
                    "tokens",
                    f"{about['tokens']:,} for {many(int(about['characters']), 'character')}",
                ),
                ("vocabulary used", f"{about['distinct']:,} of {about['vocabulary']:,}"),
                ("largest id", f"{about['largest']:,} ({pieces[ids.index(max(ids))]})"),
            ]
        )
    )
