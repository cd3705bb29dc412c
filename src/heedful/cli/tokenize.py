"""The command `heedful tokenize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heedful.cli.input_texts import file_option, read_text
from heedful.cli.options import json_option
from heedful.errors import ArgumentError, TextError

if TYPE_CHECKING:
    from heedful.text import Tokenizer

ROWS = 60  # maximum number of rows in the table
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
    "--tokenizer", "name", default="bpe", show_default=True,
    metavar="NAME",
    help="Tokenizer: characters; bpe or wordpiece, trained on the Python reference; a tiktoken "
    "encoding; or a model's directory.",
)  # fmt: skip
@click.option(
    "--vocabulary", type=click.IntRange(256), metavar="N", default=1024, show_default=True,
    help="Size of the vocabulary of bpe (including 256 bytes) or wordpiece.",
)  # fmt: skip
@json_option
def tokenize(
    text: str | None, file: Path | None, name: str, vocabulary: int, as_json: bool
) -> None:
    """Show the tokens of TEXT with their ids, the number of distinct ids, and the largest id.

    The tokens are those that a model reads, with tokens such as [CLS] before and after the text.
    """
    text = read_text(text, file)
    tokenizer = _tokenizer(name, vocabulary, text)
    tokens = _read_ids(tokenizer, text)
    if not tokens:
        raise TextError("a text without tokens", expected="more than white space")
    pieces = tokenizer.pieces(tokens)
    from heedful.text import TiktokenTokenizer

    ids = tokens
    if isinstance(tokenizer, TiktokenTokenizer):  # may have fewer rows than the encoding has ids
        ids = [tokenizer.original_id(token) for token in tokens]
    summary: dict[str, int | str] = {
        "tokenizer": name,
        "characters": len(text),
        "tokens": len(ids),
        "distinct": len(set(ids)),
        "largest": max(ids),
        "vocabulary": tokenizer.size,
    }
    if as_json:
        click.echo(json.dumps({**summary, "pieces": pieces, "ids": ids}))
        return
    _show(summary, pieces, ids)


def _tokenizer(name: str, vocabulary: int, text: str) -> Tokenizer:
    from heedful.text import (
        CharacterTokenizer,
        StringSource,
        TiktokenTokenizer,
        TokenizerChoice,
        load_tokenizer,
        open_encoding,
        python_reference,
    )
    from heedful.text.preparation import LEARNED

    if name not in LEARNED and Path(name).exists():
        return load_tokenizer(name)
    try:
        choice = TokenizerChoice(name, vocabulary)
    except ArgumentError as error:
        raise ArgumentError(str(error), remedy="or name an existing run directory") from error
    if choice.is_encoding:
        return TiktokenTokenizer.full(open_encoding(name))
    is_characters = name == CharacterTokenizer.kind
    return choice.learn([text] if is_characters else StringSource(python_reference()).pieces())


def _read_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids that a model reads."""
    from heedful.text import WordPieceTokenizer

    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer.inputs(text).ids
    return [*tokenizer.prefix_ids, *tokenizer.encode(text)]


def _show(summary: dict[str, int | str], pieces: list[str], ids: list[int]) -> None:
    from heedful.views.terminal import console, facts, plural, table

    screen = console()
    tokens = list(zip(range(len(ids)), pieces, ids, strict=True))[:ROWS]
    rows = [(str(n), piece, str(token)) for n, piece, token in tokens]
    screen.print(table(["position", "piece", "id"], rows, numbers=[0, 2]))
    if len(ids) > ROWS:
        screen.print(f"… and {len(ids) - ROWS:,} more (--json lists all)", style="dim")
    screen.print()
    characters = plural(int(summary["characters"]), "character")
    pairs = [
        ("tokens", f"{summary['tokens']:,} for {characters}"),
        ("vocabulary used", f"{summary['distinct']:,} of {summary['vocabulary']:,}"),
        ("largest id", f"{summary['largest']:,} ({pieces[ids.index(max(ids))]})"),
    ]
    screen.print(facts(pairs))
