"""A table of words and their vectors: from a CSV or JSON file, or of a model's tokens."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heedful.errors import TextError
from heedful.token_names import SIGNS

LARGEST = 1e100  # its square is still a number
HEADINGS = ("word", "words", "token", "tokens", "index")  # of the column of words
SWALLOWED = re.compile(r",\s*[-+]?[.\d][^,\n]*\n")  # in a cell: the end of a line of numbers


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

    A first line of a CSV file is its heading if it has no numbers or no word, or if its numbers
    count the columns, as pandas writes them (`word,0,1,2` above numbers with a decimal point).

    Raises:
        TextError: the file cannot be read or is no such table; the line is named.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise TextError(f"cannot read {path}: {reason}", expected="a CSV or JSON file") from error
    rows = _from_json(text, path) if path.suffix.lower() == ".json" else _from_csv(text, path)
    if not rows:
        raise TextError(f"no words in {path}", expected="a word and its numbers in each line")
    return WordVectors(list(rows), list(rows.values()))


def _from_csv(text: str, path: Path) -> dict[str, list[float]]:
    lines = _csv_lines(text, path)
    if lines and _is_heading(lines[0][1], lines[1][1] if lines[1:] else []):
        del lines[0]
    rows: dict[str, list[float]] = {}
    for number, cells in lines:
        where = f"line {number} of {path}"
        _add(rows, cells[0].strip(), [_read(cell) for cell in cells[1:]], where)
    return rows


def _csv_lines(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """The cells of each line that has any, with the number of the line where it begins.

    A quotation mark that is not closed would make one cell of the lines after it.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines, reason, begin = [], "", 1
    try:
        for cells in reader:
            if any(SWALLOWED.search(cell) for cell in cells):
                reason = "the lines after it stand in one cell"
                break
            if any(cell.strip() for cell in cells):
                lines.append((begin, cells))
            begin = reader.line_num + 1
    except csv.Error as error:
        reason = str(error)
    if reason:
        raise TextError(
            f"line {begin} of {path} is not CSV: {reason}",
            expected="a word and its numbers",
            cause="a quotation mark that is not closed",
            remedy='write the word " as """"',
        )
    return lines


def _is_heading(cells: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a first line of several cells has no numbers, no word, or counts the columns.

    A word may have the vector 0, 1, 2: it is a heading only above numbers that are not whole, and
    above fewer than three only if it is called as one.
    """
    word, *columns = cells
    numbers = [cell for cell in columns if isinstance(_read(cell), float)]
    if not columns or not numbers or not word.strip():
        return bool(columns)
    counts = columns == [str(n) for n in range(len(columns))]
    fractions = any(not cell.strip().lstrip("+-").isdigit() for cell in after[1:])
    return counts and fractions and (len(columns) > 2 or word.strip().lower() in HEADINGS)


def _from_json(text: str, path: Path) -> dict[str, list[float]]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{path} is not JSON: {error}", expected='{"word": [1.0, 2.0]}') from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise TextError(f"{path} is no table of words", expected='{"word": [1.0, 2.0], …}')
    rows: dict[str, list[float]] = {}
    for word, values in pairs:
        _add(rows, word, values if isinstance(values, list) else [], f"{word!r} in {path}")
    return rows


def _read(cell: str) -> float | str:
    """The number in a cell, or the cell itself where it holds none."""
    try:
        return float(cell)
    except ValueError:
        return cell


def _add(rows: dict[str, list[float]], word: str, values: Sequence[Any], where: str) -> None:
    """Add a word, if it has a name, is new, and has as many numbers as those before it."""
    if not word:
        raise TextError(f"{where} has no word", expected="a word and its numbers")
    if not values:
        raise TextError(
            f"{where} has no vector",
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
    rows[word] = [float(value) for value in values]
