"""What every tokenizer can do, written once over a table of the bytes of each token."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from heedful.errors import ArgumentError, TextError
from heedful.files import make_directory, write_checked_json
from heedful.token_names import SIGNS

FILE_NAME = "tokenizer.json"
ENVELOPE = "heedful_tokenizer"
VERSION = 1


class Tokenizer(ABC):
    """Text to ids and back, exactly: row i of a model's table stands for `token_bytes(i)`.

    Args:
        table: the bytes of each token, in the order of the ids.
    """

    kind: ClassVar[str]
    special: Mapping[str, int] = MappingProxyType({})
    """The ids of special tokens by their role (bos, eos, unk, sep, pad, cls, mask)."""
    first: tuple[int, ...] = ()
    """The ids that stand before a text where a model reads it, such as that of <s>."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table

    @property
    def size(self) -> int:
        """The rows that a model's table needs: ids are 0 … size - 1."""
        return len(self._table)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each token of `encode` the characters of the text that it stands for, or is part of.

        From where to where, the end not included. Errors as `encode_array`.
        """
        ids = self.encode(text)
        sizes = [len(char.encode("utf-8", "surrogatepass")) for char in text]
        of_byte = np.repeat(np.arange(len(text)), sizes)  # which character a byte is of
        ends = np.cumsum([0, *(len(self.token_bytes(token)) for token in ids)]).tolist()
        return [(int(of_byte[start]), int(of_byte[end - 1]) + 1) for start, end in pairwise(ends)]

    @abstractmethod
    def encode_array(self, text: str) -> np.ndarray:
        """The ids of a text, (T,) uint32.

        Raises:
            TextError: the text has something that this tokenizer has no id for.
        """

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as a list; errors as `encode_array`."""
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, which may be only part of a character.

        Raises:
            ArgumentError: no token has this id.
        """
        if 0 <= token < self.size:
            return self._table[token]
        raise ArgumentError(
            f"token {int(token)}",
            expected=f"an id of 0 to {self.size - 1:,}",
            cause="ids of another tokenizer",
            remedy="use the tokenizer that made them",
        )

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, one after another; errors as `token_bytes`."""
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; bytes that are no whole character become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable label for each token, for tables and pictures.

        A space is `·`, a line break `↵`, a tab `⇥`, a carriage return `␍`; what is only part of a
        character, or cannot be printed, is its bytes, such as `<e2>`.
        """
        return [_label(self.token_bytes(token)) for token in ids]

    def save(self, path: str | Path) -> None:
        """Write the tokenizer, whole or not at all; `load_tokenizer` reads it.

        Args:
            path: a file whose name ends in `.json`, or a directory (then `tokenizer.json` in it).

        Raises:
            SaveError: the file cannot be written; what was there before still is.
        """
        path = tokenizer_file(path)
        make_directory(path.parent)
        self._write(path)

    @abstractmethod
    def _write(self, path: Path) -> None:
        """Write the tokenizer to this file."""

    def _write_envelope(self, path: Path, **what: Any) -> None:
        write_checked_json(path, {ENVELOPE: VERSION, "kind": self.kind, **what})


def check_vocabulary(vocabulary: int) -> None:
    """Refuse a vocabulary with fewer tokens than there are bytes; `ArgumentError`."""
    if vocabulary < 256:
        raise ArgumentError(
            f"a vocabulary of {vocabulary}",
            expected="256 or more",
            cause="each of the 256 bytes has a token of its own",
            remedy="try 4096",
        )


def tokenizer_file(path: str | Path) -> Path:
    """The file that a path means: itself, or `tokenizer.json` in a directory.

    >>> tokenizer_file("runs/first").name, tokenizer_file("mine.json").name
    ('tokenizer.json', 'mine.json')
    """
    path = Path(path)
    is_file = path.is_file() or (path.suffix == ".json" and not path.is_dir())
    return path if is_file else path / FILE_NAME


def whole_characters(text: str) -> str:
    """The text, unless it has half a surrogate pair, which no UTF-8 stands for.

    Such a half comes from bytes on a command line, or from a file, that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"the character {text[error.start]!r} at position {error.start}",
            expected="text that UTF-8 can hold",
            cause="bytes in another encoding",
            remedy="convert the text to UTF-8",
        ) from None
    return text


def _label(token: bytes) -> str:
    text = token.decode("utf-8", "surrogateescape")  # a byte b that fits nowhere: U+DC00 + b
    label = "".join(SIGNS.get(char) or _printable(char) for char in text)
    return "◌" + label if label and unicodedata.combining(label[0]) else label


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    return "".join(f"<{byte:02x}>" for byte in char.encode("utf-8", "surrogateescape"))
