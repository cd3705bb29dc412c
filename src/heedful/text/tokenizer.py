"""The base class of tokenizers, built on a table of the bytes of each token."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from heedful.errors import ArgumentError, HeedfulError, TextError
from heedful.files import make_directory, write_checked_json
from heedful.token_names import SIGNS

FILE_NAME = "tokenizer.json"
ENVELOPE = "heedful_tokenizer"
VERSION = 1


class Tokenizer(ABC):
    """A mapping of text to ids and back; id i represents the bytes `token_bytes(i)`.

    Args:
        table: the bytes of each token, in the order of the ids.
    """

    kind: ClassVar[str]
    special: Mapping[str, int] = MappingProxyType({})
    """The ids of special tokens by their role (bos, eos, unk, sep, pad, cls, mask)."""
    prefix_ids: tuple[int, ...] = ()
    """The ids that a model expects before a text, such as the id of <s>."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table

    @property
    def size(self) -> int:
        """The number of ids, 0 … size - 1."""
        return len(self._table)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the span of characters of each token of `encode`: (start, end), the end exclusive.

        A character in several tokens is in the span of each. Raises as `encode_array`.
        """
        ids = self.encode(text)
        sizes = [len(char.encode("utf-8", "surrogatepass")) for char in text]
        chars = np.repeat(np.arange(len(text)), sizes)  # the character of each byte
        ends = np.cumsum([0, *(len(self.token_bytes(token)) for token in ids)]).tolist()
        return [(int(chars[start]), int(chars[end - 1]) + 1) for start, end in pairwise(ends)]

    @abstractmethod
    def encode_array(self, text: str) -> np.ndarray:
        """Return the ids of a text, (T,) uint32.

        Raises:
            TextError: the tokenizer cannot encode a part of the text.
        """

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text as a list; raise as `encode_array`."""
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, which may be only part of a character.

        Raises:
            ArgumentError: no token has this id.
        """
        if 0 <= token < self.size:
            return self._table[token]
        raise ArgumentError(
            f"token {int(token)}",
            expected=f"an id from 0 to {self.size - 1:,}",
            cause="ids of another tokenizer",
            remedy="use the tokenizer that produced them",
        )

    def original_id(self, token: int) -> int:
        """Return the id that the tokenizer's library uses for a token."""
        return token

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the concatenated bytes of tokens; raise as `token_bytes`."""
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; incomplete characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each token, for tables and pictures.

        A space becomes `·`, a line break `↵`, a tab `⇥`, a carriage return `␍`. Incomplete and
        unprintable characters become their bytes, such as `<e2>`.
        """
        return [_label(self.token_bytes(token)) for token in ids]

    def save(self, path: str | Path) -> None:
        """Write the tokenizer atomically; `load_tokenizer` reads it.

        Args:
            path: a file with the suffix `.json`, or a directory for `tokenizer.json`.

        Raises:
            SaveError: the file cannot be written; an earlier file is intact.
        """
        path = tokenizer_file(path)
        make_directory(path.parent)
        self._write(path)

    @abstractmethod
    def _write(self, path: Path) -> None:
        """Write the tokenizer to this file."""

    def _write_envelope(self, path: Path, **entries: Any) -> None:
        write_checked_json(path, {ENVELOPE: VERSION, "kind": self.kind, **entries})


def check_vocabulary(vocabulary: int) -> None:
    """Raise an `ArgumentError` for a vocabulary of fewer than 256 tokens."""
    if vocabulary < 256:
        raise ArgumentError(
            f"a vocabulary of {vocabulary}",
            expected="256 or more",
            cause="each of the 256 bytes needs a token",
            remedy="try 4096",
        )


def tokenizer_file(path: str | Path) -> Path:
    """Return the tokenizer file of a path: the path itself, or `tokenizer.json` in a directory.

    >>> tokenizer_file("runs/first").name, tokenizer_file("mine.json").name
    ('tokenizer.json', 'mine.json')
    """
    path = Path(path)
    is_file = path.is_file() or (path.suffix == ".json" and not path.is_dir())
    return path if is_file else path / FILE_NAME


@contextmanager
def encoding_errors() -> Iterator[None]:
    """Turn the errors of libraries that encode a text into `TextError`s.

    A panic in a Rust library raises a `BaseException` that is not an `Exception`.
    """
    try:
        yield
    except (HeedfulError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise TextError(
            f"a text that the tokenizer cannot encode ({error})",
            cause="a very long word or run of spaces, or a pattern that is too slow for the text",
            remedy="shorten the run, or use another tokenizer",
        ) from error


def _label(token: bytes) -> str:
    text = token.decode("utf-8", "surrogateescape")  # an invalid byte b becomes U+DC00 + b
    label = "".join(SIGNS.get(char) or _printable(char) for char in text)
    return "◌" + label if label and unicodedata.combining(label[0]) else label


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    return "".join(f"<{byte:02x}>" for byte in char.encode("utf-8", "surrogateescape"))
