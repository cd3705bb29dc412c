"""A character tokenizer: one token for each distinct character of the training text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from heedful.errors import ArgumentError, TextError
from heedful.text.tokenizer import Tokenizer


class CharacterTokenizer(Tokenizer):
    """A tokenizer of characters; an id is the index of a character in the sorted list.

    Args:
        characters: the distinct characters, sorted by code point.

    >>> tokenizer = CharacterTokenizer.train(["hello ", "world"])
    >>> tokenizer.size, tokenizer.encode("hold"), tokenizer.decode([3, 5, 4, 1])
    (8, [3, 5, 4, 1], 'hold')
    """

    kind = "characters"

    def __init__(self, characters: str) -> None:
        codes = _codes(characters)
        if not len(codes) or (np.diff(codes.astype(np.int64)) <= 0).any():
            raise ArgumentError(
                f"{len(codes)} characters",
                expected="at least one, distinct and sorted",
                remedy="create the tokenizer with CharacterTokenizer.train",
            )
        super().__init__([char.encode("utf-8", "surrogatepass") for char in characters])
        self.characters = characters
        self._id_of = np.full(int(codes[-1]) + 1, -1, np.int32)
        self._id_of[codes] = np.arange(len(codes))

    @classmethod
    def train(cls, pieces: Iterable[str]) -> CharacterTokenizer:
        """Create the tokenizer for a text, passed in pieces.

        Raises:
            TextError: the text is empty.
        """
        characters: set[str] = set()
        for piece in pieces:
            characters.update(piece)
        if not characters:
            raise TextError("an empty text", expected="at least one character")
        return cls("".join(sorted(characters)))

    def encode_array(self, text: str) -> np.ndarray:
        """Return the ids of a text, (T,) uint32; raise a `TextError` for an unknown character."""
        codes = _codes(text)
        last = len(self._id_of) - 1
        ids = np.where(codes <= last, self._id_of[np.minimum(codes, last)], -1)
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            char = text[unknown[0]]
            raise TextError(
                f"the character {char!r} (U+{ord(char):04X}) at position {unknown[0]}",
                expected=f"one of the {self.size} characters of the training text",
                remedy="leave it out, or train with byte pairs (bpe), which take any text",
            )
        return ids.astype(np.uint32)

    def _write(self, path: Path) -> None:
        self._write_envelope(path, characters=self.characters)


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
