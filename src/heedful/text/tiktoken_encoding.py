"""Tokenizers from OpenAI's `tiktoken` encodings, with only the ids that a training text uses.

`cl100k_base` has 100,277 ids, of which a book uses a few thousand. A model with an embedding row
for each id would spend most of its memory and time on rows that are never trained.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.configuration import nearest
from heedful.errors import ArgumentError, TextError, valid_unicode
from heedful.text.tokenizer import Tokenizer, encoding_errors

if TYPE_CHECKING:
    import tiktoken

MAX_SIZE = 1 << 26  # bytes of all tokens
MAX_IDS = 1 << 24


class TiktokenTokenizer(Tokenizer):
    """A tiktoken encoding with consecutive new ids, called rows, for some or all of its ids.

    Any text encodes, and decodes to the same text: an id without a row is split into single bytes,
    and all 256 bytes have rows. Text that spells a special token is encoded as ordinary text.

    Args:
        encoding: an encoding of `tiktoken`; `save` stores its ranks, too.
        originals: the encoding's ids that have rows, ascending, (size,).

    Raises:
        ArgumentError: a single byte has no row.
    """

    kind = "tiktoken"

    def __init__(self, encoding: tiktoken.Encoding, originals: np.ndarray) -> None:
        originals = np.asarray(originals, np.int64)
        super().__init__([_bytes_of(encoding, id) for id in originals.tolist()])
        self.encoding, self.name = encoding, encoding.name
        self.originals = originals
        self._row_of = np.full(encoding.max_token_value + 1, -1, np.int32)
        self._row_of[originals] = np.arange(len(originals))
        self._byte_rows = self._row_of[single_bytes(encoding)]
        if (self._byte_rows < 0).any():
            raise ArgumentError(
                f"{len(originals):,} rows without all 256 single bytes",
                expected="a row for each byte, so that any text can be encoded",
                remedy="use TiktokenTokenizer.compact",
            )

    @classmethod
    def full(cls, encoding: tiktoken.Encoding) -> TiktokenTokenizer:
        """Return a tokenizer with a row for every id of the encoding, special tokens included."""
        return cls(encoding, np.arange(encoding.max_token_value + 1))

    @classmethod
    def compact(cls, encoding: tiktoken.Encoding, used: np.ndarray) -> TiktokenTokenizer:
        """Return a tokenizer with rows for the ids that a text uses and for the 256 single bytes.

        For a textbook of 460,319 characters, `cl100k_base` needs 3,989 rows instead of 100,277.
        """
        return cls(encoding, np.union1d(used, single_bytes(encoding)))

    @classmethod
    def up_to_largest(cls, encoding: tiktoken.Encoding, used: np.ndarray) -> TiktokenTokenizer:
        """Return a tokenizer with row i for each id i, up to the largest id of a text or a byte."""
        return cls(encoding, np.arange(np.append(used, single_bytes(encoding)).max() + 1))

    def original_id(self, row: int) -> int:
        """Return the encoding's id for a row."""
        self.token_bytes(row)  # raises an error for an invalid row
        return int(self.originals[row])

    def encode_array(self, text: str) -> np.ndarray:
        """Return the rows of a text, (T,) uint32; releases the GIL."""
        return self.rows(original_ids(self.encoding, text))

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the rows of the encoding's ids; an id without a row becomes rows of its bytes.

        Args:
            ids: the encoding's ids, (T,).

        Returns:
            rows, (T′,) uint32 with T′ ≥ T.
        """
        rows = self._row_of[ids]
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            spellings = [_bytes_of(self.encoding, int(ids[index])) for index in missing]
            repeats = np.ones(len(rows), np.int64)
            repeats[missing] = [len(spelling) for spelling in spellings]
            rows = np.repeat(rows, repeats)
            rows[rows < 0] = self._byte_rows[list(b"".join(spellings))]
        return rows.astype(np.uint32)

    def _write(self, path: Path) -> None:
        is_range = len(self.originals) == self.originals[-1] + 1
        rows = {"size": self.size} if is_range else {"ids": self.originals.tolist()}
        # The file contains the ranks, so that loading it needs neither cache nor network
        data = encoding_data(self.encoding)
        self._write_envelope(path, encoding=self.name, **rows, carried=data)


def open_encoding(name: str) -> tiktoken.Encoding:
    """Open an encoding by its name; ranks missing from tiktoken's cache are downloaded once.

    Raises:
        ArgumentError: no encoding has this name.
        TextError: the ranks are neither in the cache nor downloadable.
    """
    import tiktoken

    check_name(name)
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # the errors of `requests` are OSErrors
        raise TextError(
            f"cannot read the vocabulary (token ranks) of {name} ({type(error).__name__})",
            expected="the ranks in tiktoken's cache, or a network connection to download them",
            remedy="connect once, set TIKTOKEN_CACHE_DIR to a folder with the ranks, "
            "or train a tokenizer (bpe)",
        ) from error


def check_name(name: str, others: tuple[str, ...] = ()) -> None:
    """Raise an `ArgumentError` unless this is the name of an encoding or one of `others`."""
    import tiktoken

    names = [*others, *tiktoken.list_encoding_names()]
    if name not in names:
        raise ArgumentError(f"no tokenizer named {name!r}", expected=nearest(name, names))


def original_ids(encoding: tiktoken.Encoding, text: str) -> np.ndarray:
    """Return the encoding's ids of a text, (T,) uint32; special tokens count as ordinary text."""
    with encoding_errors():
        return encoding.encode_to_numpy(valid_unicode(text), disallowed_special=())


def single_bytes(encoding: tiktoken.Encoding) -> np.ndarray:
    """Return the ids of the 256 single bytes, in the order of the bytes, (256,) int64."""
    return np.array([encoding.encode_single_token(bytes([byte])) for byte in range(256)])


def encoding_data(encoding: tiktoken.Encoding) -> dict[str, Any]:
    """Return the data from which `encoding_from` restores the encoding, ready for JSON.

    It has all ranks, because a text's ids also depend on tokens that the training text lacks:
    572 kB, compressed, for `cl100k_base`.

    The entry `tokens` has the length of each token as one byte, in the order of the ranks (0 for an
    unused rank), then the tokens. No token of tiktoken is longer than 255 bytes.
    """
    # tiktoken's README copies an encoding by these three private attributes
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    tokens = [b""] * (max(ranks.values()) + 1)
    for token, rank in ranks.items():
        tokens[rank] = token
    data = bytes(map(len, tokens)) + b"".join(tokens)
    return {
        "pattern": encoding._pat_str,
        "special": dict(encoding._special_tokens),
        "ranks": len(tokens),
        "tokens": base64.b64encode(zlib.compress(data, 9)).decode("ascii"),
    }


def encoding_from(name: str, data: Mapping[str, Any]) -> tiktoken.Encoding:
    """Restore an encoding from its `encoding_data`.

    Raises:
        ArgumentError: the ranks cannot be decompressed.
    """
    import tiktoken

    offset = data["ranks"]
    try:
        stream = zlib.decompressobj()
        tokens = base64.b64decode(data["tokens"], validate=True)
        decompressed = stream.decompress(tokens, MAX_SIZE)
        if not stream.eof or max(data["special"].values(), default=0) >= MAX_IDS:
            raise ValueError("incomplete or too large")
    except (ValueError, zlib.error) as error:
        raise ArgumentError(f"ranks that cannot be decompressed ({error})") from error
    ranks = {}
    for rank, length in enumerate(decompressed[: data["ranks"]]):
        if length:
            ranks[decompressed[offset : offset + length]] = rank
            offset += length
    return tiktoken.Encoding(
        name, pat_str=data["pattern"], mergeable_ranks=ranks, special_tokens=data["special"]
    )


def _bytes_of(encoding: tiktoken.Encoding, id: int) -> bytes:
    try:
        return encoding.decode_single_token_bytes(id)
    except KeyError:  # a gap between the ranks and the special tokens
        return b""
