"""A table of words and their vectors: from a CSV or JSON file, or of a model's tokens."""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from heedful.errors import TextError
from heedful.token_names import SIGNS

LARGEST = 1e100  # its square is still a number
HEADINGS = ("", "word", "words", "token", "tokens", "index")  # of the column of words


class WordVectors:
    """Words and a row for each, (V, d); numbers of a list become float64, an array keeps its type.

    Where two tokens of a model look alike, the first is found by its name.

    Raises:
        TextError: a number that is not finite.

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
            raise TextError(f"a vector of {word!r} that is not finite", expected="numbers")

    def __getitem__(self, word: str) -> np.ndarray:
        """The vector of a word, (d,); words and errors as `row`."""
        return self.table[self.row(word)]

    def row(self, word: str) -> int:
        """The row of a word; in a model's table also of its piece, such as `·night` for night.

        Raises:
            TextError: a word that is not in the table, with those that are spelt most like it.
        """
        visible = "".join(SIGNS.get(char, char) for char in word)
        for name in (word, visible, SIGNS[" "] + word):
            if name in self._rows:
                return self._rows[name]
        near = self._near(word) or self.words[:3]
        raise TextError(
            f"no word {word!r} among {len(self.words):,}",
            expected="one of the table, such as " + ", ".join(near),
            cause="a word that its text does not have, or that is cut into several tokens",
        )

    def _near(self, word: str) -> list[str]:
        """The words that are spelt most like one; the space before a piece does not count."""
        bare = {name.removeprefix(SIGNS[" "]): name for name in self._rows}
        return [bare[name] for name in difflib.get_close_matches(word.strip(), bare, 3, 0.5)]


def read_vectors(path: Path) -> WordVectors:
    """A table from a file: CSV (a word and its numbers in each line) or JSON ({word: numbers}).

    A first line of a CSV file is its heading if its first cell is empty or a name such as `word`,
    or if it has no numbers.

    Raises:
        TextError: the file cannot be read or is no such table; the line is named.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise TextError(f"cannot read {path}: {reason}", expected="a CSV or JSON file") from error
    read = _json_rows if path.suffix.lower() == ".json" else _csv_rows
    rows: dict[str, list[float]] = {}
    for where, word, values in read(text, path):
        rows[word] = _checked(rows, word, values, where)
    if not rows:
        raise TextError(f"no words in {path}", expected="a word and its numbers in each line")
    return WordVectors(list(rows), list(rows.values()))


Rows: TypeAlias = Iterator[tuple[str, str, Sequence[Any]]]
"""Where a row stands, for an error, its word and its numbers."""


def _csv_rows(text: str, path: Path) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = True
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            word, *values = cells[0].strip(), *map(_number, cells[1:])
            if not (first and _is_heading(word, values)):
                yield f"line {reader.line_num} of {path}", word, values
            first = False
    except csv.Error as error:
        raise TextError(
            f"line {reader.line_num} of {path} is not CSV: {error}",
            expected="a word and its numbers",
            cause="a quotation mark that is not closed",
            remedy='write the word " as """"',
        ) from error


def _is_heading(word: str, values: Sequence[float | str]) -> bool:
    has_numbers = any(isinstance(value, float) for value in values)
    return bool(values) and (not has_numbers or word.lower() in HEADINGS)


def _json_rows(text: str, path: Path) -> Rows:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{path} is not JSON: {error}", expected='{"word": [1.0, 2.0]}') from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise TextError(f"{path} is no table of words", expected='{"word": [1.0, 2.0], …}')
    for word, values in pairs:
        yield f"{word!r} in {path}", word, values if isinstance(values, list) else []


def _number(cell: str) -> float | str:
    """The number in a cell, or the cell itself where it holds none."""
    try:
        return float(cell)
    except ValueError:
        return cell


def _checked(
    rows: Mapping[str, list[float]], word: str, values: Sequence[Any], where: str
) -> list[float]:
    """The numbers of a word that has a name, is new, and has as many as those before it."""
    if not word or not values:
        raise TextError(
            f"{where} has no {'vector' if word else 'word'}",
            expected="a word and its numbers",
            cause="in a CSV file, a separator other than the comma",
        )
    for value in values:
        # a comparison with NaN is false, so NaN and infinity end here too
        if type(value) not in (int, float) or not abs(value) < LARGEST:
            raise TextError(f"{where} has {value!r:.40}", expected="finite numbers after the word")
    if word in rows:
        raise TextError(f"{where} gives {word!r} again", expected="each word once")
    width = len(next(iter(rows.values()), values))
    if len(values) != width:
        raise TextError(
            f"{where} has {len(values)} numbers", expected=f"{width}, as the words before it"
        )
    return [float(value) for value in values]
