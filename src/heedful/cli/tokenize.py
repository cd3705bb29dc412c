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
  heedful tokenize --file book.txt --tokenizer cl100k_base --batch 4 16
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
@click.option(
    "--batch", nargs=2, type=click.IntRange(1, 10_000), metavar="ROWS TOKENS",
    help="Show a batch as training draws it: ROWS sequences of TOKENS tokens from random positions "
    "of TEXT, each with its targets, the tokens one position later.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), metavar="N", default=0, show_default=True,
    help="With --batch: seed of the random positions.",
)  # fmt: skip
@json_option
def tokenize(
    text: str | None, file: Path | None, name: str, vocabulary: int, batch: tuple[int, int] | None,
    seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Show the tokens of TEXT with their ids, the number of distinct ids, and the largest id.

    The tokens are those that a model reads, with tokens such as [CLS] before and after the text.
    """
    text = read_text(text, file)
    from heedful.text import WordPieceTokenizer

    tokenizer = _tokenizer(name, vocabulary, text)
    if isinstance(tokenizer, WordPieceTokenizer):
        tokens = tokenizer.inputs(text).ids
    else:
        tokens = [*tokenizer.prefix_ids, *tokenizer.encode(text)]
    if not tokens:
        raise TextError("a text without tokens", expected="more than white space")
    if batch is not None:
        _show_batch(tokenizer, tokens, *batch, seed, as_json)
        return
    pieces = tokenizer.pieces(tokens)
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


def _show_batch(
    tokenizer: Tokenizer, tokens: list[int], rows: int, length: int, seed: int, as_json: bool
) -> None:
    """Show random sequences of a text; targets are the inputs shifted by one."""
    import numpy as np

    from heedful.train.batches import BatchIndex, window_starts
    from heedful.views.terminal import console, facts, flow

    if len(tokens) <= length:
        raise TextError(
            f"a text of {len(tokens):,} tokens for rows of {length:,}",
            expected=f"at least {length + 1:,}, because targets are one position later",
            remedy="pass more text, or fewer tokens in a row",
        )
    random = np.random.default_rng(seed)
    starts = window_starts(BatchIndex((seed,)), rows, len(tokens) - 1, length, random).tolist()
    windows = [tokens[start : start + length + 1] for start in starts]
    ids = [[tokenizer.original_id(token) for token in window] for window in windows]
    if as_json:
        data = {"inputs": [row[:-1] for row in ids], "targets": [row[1:] for row in ids]}
        click.echo(json.dumps({"starts": starts, **data}))
        return
    screen = console()
    screen.print(f"{rows} × {length} of {len(tokens):,} tokens; targets are one position later")
    width = len(str(max(map(max, ids))))
    for n, row in enumerate(ids):
        inputs, targets = (
            flow((f"{token:{width}}" for token in part), screen.width - len("targets") - 2)
            for part in (row[:-1], row[1:])
        )
        text = " ".join(tokenizer.decode(windows[n][:-1]).split())
        screen.print()
        screen.print(facts([(f"row {n}", text), ("inputs", inputs), ("targets", targets)]))


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
