"""A table of words and their vectors: from a CSV or JSON file, or of a model's tokens."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heedful.errors import TextError
from heedful.text.tokenizer import SIGNS


class WordVectors:
    """Words and a row for each, (V, d) float32.

    Raises:
        TextError: a word twice, or numbers that are none.

    >>> table = WordVectors(["king", "queen"], [[0.9, 0.5], [0.2, 0.5]])
    >>> table.row("queen")
    1
    """

    def __init__(self, words: Sequence[str], table: Sequence[Sequence[float]] | np.ndarray) -> None:
        self.words = list(words)
        self.table = np.asarray(table, dtype=np.float32)
        self._rows: dict[str, int] = {}
        for row, word in enumerate(self.words):
            self._rows.setdefault(word, row)
        if not np.isfinite(self.table).all():
            word = self.words[int(np.argwhere(~np.isfinite(self.table))[0][0])]
            raise TextError(f"a vector of {word!r} that is not finite", expected="numbers")

    def row(self, word: str) -> int:
        """The row of a word; in a model's table also of its piece after a space.

        Raises:
            TextError: a word that is not in the table, with those that are spelt most like it.
        """
        for name in (word, SIGNS[" "] + word):
            if name in self._rows:
                return self._rows[name]
        near = difflib.get_close_matches(word, self.words, n=3, cutoff=0.5)
        raise TextError(
            f"no word {word!r} among {len(self.words):,}",
            expected="one of the table, such as " + ", ".join(near or self.words[:3]),
            cause="a word that its text does not have, or that is cut into several tokens",
        )


def read_vectors(path: Path) -> WordVectors:
    """A table from a file: CSV (a word and its numbers in each line) or JSON ({word: numbers}).

    A first line of a CSV file that holds no numbers is its heading.

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
    rows: dict[str, list[float]] = {}
    for number, cells in enumerate(csv.reader(text.splitlines()), 1):
        if not any(cell.strip() for cell in cells):
            continue
        word, numbers = cells[0].strip(), _numbers(cells[1:])
        if numbers is None and not rows and number == 1:
            continue
        _add(rows, word, numbers, f"line {number} of {path}")
    return rows


def _from_json(text: str, path: Path) -> dict[str, list[float]]:
    try:
        table = json.loads(text, object_pairs_hook=list)
    except json.JSONDecodeError as error:
        raise TextError(f"{path} is not JSON: {error}", expected='{"word": [1.0, 2.0]}') from error
    pairs = table if isinstance(table, list) else []
    if not pairs or not all(isinstance(pair, tuple) for pair in pairs):
        raise TextError(f"{path} is no table of words", expected='{"word": [1.0, 2.0], …}')
    rows: dict[str, list[float]] = {}
    for word, values in pairs:
        numbers = _numbers(values) if isinstance(values, list) else None
        _add(rows, word, numbers, f"{word!r} in {path}")
    return rows


def _numbers(cells: Sequence) -> list[float] | None:
    """The cells as numbers; None where there are none, or one is no number."""
    try:
        return [float(cell) for cell in cells] or None
    except (TypeError, ValueError):
        return None


def _add(rows: dict[str, list[float]], word: str, numbers: list[float] | None, where: str) -> None:
    if numbers is None:
        raise TextError(f"{where} has no vector", expected="a word and its numbers")
    if word in rows:
        raise TextError(f"{where} gives {word!r} again", expected="each word once")
    width = len(next(iter(rows.values()), numbers))
    if len(numbers) != width:
        raise TextError(
            f"{where} has {len(numbers)} numbers", expected=f"{width}, as the words before it"
        )
    rows[word] = numbers
