"""A table of words and their vectors, from a CSV or JSON file or from a model's tokens."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from heedful.errors import TextError
from heedful.files import check_regular, parse_json
from heedful.token_names import SIGNS

MAX_NUMBER = 1e100  # its square is still finite
HEADINGS = ("", "word", "words", "token", "tokens", "index")  # headings of the word column


class WordVectors:
    """Words and their vectors (V, d). Lists of floats become float64; an array keeps its dtype.

    If two tokens of a model have the same label, the label refers to the first.

    Raises:
        TextError: a number is not finite.

    >>> table = WordVectors(["king", "queen"], [[0.9, 0.5], [0.2, 0.5]])
    >>> table.row("queen"), table["queen"]
    (1, array([0.2, 0.5]))
    """

    def __init__(self, words: Sequence[str], table: Sequence[Sequence[float]] | np.ndarray) -> None:
        self.words = list(words)
        self.table = np.asarray(table)
        self._rows: dict[str, int] = {}
        for row, word in enumerate(self.words):
            self._rows.setdefault(word, row)
        finite = np.isfinite(self.table).all(axis=1)
        if not finite.all():
            word = self.words[int(np.argmin(finite))]
            raise TextError(f"a vector of {word!r} that is not finite", expected="finite numbers")

    def __getitem__(self, word: str) -> np.ndarray:
        """Return the vector of a word, (d,); see `row`."""
        return self.table[self.row(word)]

    def row(self, word: str) -> int:
        """Return the row of a word, or else of the word with a space before it (`·night`).

        Raises:
            TextError: the table lacks the word; the error suggests similar words.
        """
        visible = "".join(SIGNS.get(char, char) for char in word)
        for name in (word, visible, SIGNS[" "] + word):
            if name in self._rows:
                return self._rows[name]
        bare = {name.removeprefix(SIGNS[" "]): name for name in self._rows}
        close = difflib.get_close_matches(word.strip(), bare, 3, 0.5)
        similar = [bare[name] for name in close] or self.words[:3]
        raise TextError(
            f"no word {word!r} among {len(self.words):,}",
            expected="a word of the table, such as " + ", ".join(similar),
            cause="a word that is not in the text, or that is split into several tokens",
        )


def read_vectors(path: Path) -> WordVectors:
    """Read a table from CSV (a word and its numbers on each line) or JSON ({word: numbers}).

    The first line of a CSV file is a heading if it has no numbers, or if its first cell is empty or
    one of `HEADINGS`, such as `word`.

    Raises:
        TextError: the file cannot be read or is not such a table; the error names line or word.
    """
    try:
        check_regular(path)
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        is_encoding = isinstance(error, UnicodeDecodeError)
        reason = "it is not UTF-8" if is_encoding else getattr(error, "strerror", error)
        raise TextError(f"cannot read {path}: {reason}", expected="a CSV or JSON file") from error
    read = _json_rows if path.suffix.lower() == ".json" else _csv_rows
    rows: dict[str, list[float]] = {}
    for location, word, values in read(text, path):
        rows[word] = _validate(rows, word, values, location)
    if not rows:
        raise TextError(f"no words in {path}", expected="a word and its numbers in each line")
    return WordVectors(list(rows), list(rows.values()))


Rows: TypeAlias = Iterator[tuple[str, str, Sequence[Any]]]
"""For each row: its location for errors, its word, and its numbers."""


def _csv_rows(text: str, path: Path) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = True
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            word, *values = cells[0].strip(), *map(_number, cells[1:])
            has_numbers = any(isinstance(value, float) for value in values)
            is_heading = first and values and (not has_numbers or word.lower() in HEADINGS)
            if not is_heading:
                yield f"line {reader.line_num} of {path}", word, values
            first = False
    except csv.Error as error:
        raise TextError(
            f"line {reader.line_num} of {path} is not CSV: {error}",
            expected="a word and its numbers",
            cause="a quotation mark that is not closed",
            remedy='write the word " as """"',
        ) from error


def _json_rows(text: str, path: Path) -> Rows:
    try:
        pairs = parse_json(text, object_pairs_hook=list)
    except ValueError as error:
        raise TextError(f"{path} is not JSON: {error}", expected='{"word": [1.0, 2.0]}') from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise TextError(f"{path} is not a table of words", expected='{"word": [1.0, 2.0], …}')
    for word, values in pairs:
        yield f"{word!r} in {path}", word, values if isinstance(values, list) else []


def _number(cell: str) -> float | str:
    """Return the number in a cell; the cell itself if it is not a number."""
    try:
        return float(cell)
    except ValueError:
        return cell


def _validate(
    rows: Mapping[str, list[float]], word: str, values: Sequence[Any], location: str
) -> list[float]:
    """Return a word's vector; raise an error for a row that does not fit in the table."""
    if not word or not values:
        raise TextError(
            f"{location} has no {'vector' if word else 'word'}",
            expected="a word and its numbers",
            cause="in a CSV file, a separator other than the comma",
        )
    for value in values:
        # comparisons with NaN are false, so this rejects NaN and infinity too
        if type(value) not in (int, float) or not abs(value) < MAX_NUMBER:
            message = f"{location} has {value!r:.40}"
            raise TextError(message, expected="finite numbers after the word")
    if word in rows:
        raise TextError(f"{location} repeats {word!r}", expected="each word once")
    width = len(next(iter(rows.values()), values))
    if len(values) != width:
        raise TextError(
            f"{location} has {len(values)} {'number' if len(values) == 1 else 'numbers'}",
            expected=f"{width}, as in the rows before it",
        )
    return [float(value) for value in values]
