"""OpenAI's encodings (`tiktoken`), with rows only for what the training text uses.

`cl100k_base` has 100,277 ids, and a book uses some thousands of them: a model that has a row for
each id spends most of its memory, and of its time, on rows that are never trained.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError, TextError
from heedful.text.tokenizer import Tokenizer, whole_characters

if TYPE_CHECKING:
    import tiktoken


class TiktokenTokenizer(Tokenizer):
    """An encoding some of whose ids have rows; any text still encodes, and decodes to itself.

    An id that has no row is spelled with the single bytes, which always have one. Text that
    spells a special token is ordinary text.

    Args:
        encoding: an encoding of `tiktoken`; a file that is saved carries its ranks.
        originals: the encoding's ids that have rows, ascending, (size,).

    Raises:
        ArgumentError: a single byte without a row.
    """

    kind = "tiktoken"

    def __init__(self, encoding: tiktoken.Encoding, originals: np.ndarray) -> None:
        originals = np.asarray(originals, np.int64)
        super().__init__([_bytes_of(encoding, id) for id in originals.tolist()])
        self.encoding = encoding
        self.originals = originals
        self._row_of = np.full(encoding.max_token_value + 1, -1, np.int32)
        self._row_of[originals] = np.arange(len(originals))
        self._byte_rows = self._row_of[single_bytes(encoding)]
        if (self._byte_rows < 0).any():
            raise ArgumentError(
                f"{len(originals):,} rows without all 256 single bytes",
                expected="a row for each, so that any text encodes",
                remedy="use TiktokenTokenizer.compact",
            )

    @classmethod
    def whole(cls, encoding: tiktoken.Encoding) -> TiktokenTokenizer:
        """Every id of the encoding has a row, the special tokens too."""
        return cls(encoding, np.arange(encoding.max_token_value + 1))

    @classmethod
    def compact(cls, encoding: tiktoken.Encoding, used: np.ndarray) -> TiktokenTokenizer:
        """Rows for the ids that a text uses and for the 256 single bytes.

        With `cl100k_base` and a textbook of 460,319 characters, 3,989 in place of 100,277.
        """
        return cls(encoding, np.union1d(used, single_bytes(encoding)))

    @classmethod
    def up_to_largest(cls, encoding: tiktoken.Encoding, used: np.ndarray) -> TiktokenTokenizer:
        """A row for each id from 0 to the largest that a text uses; rows are the ids themselves."""
        return cls(encoding, np.arange(np.append(used, single_bytes(encoding)).max() + 1))

    @property
    def name(self) -> str:
        """The name of the encoding."""
        return self.encoding.name

    def original_id(self, row: int) -> int:
        """The encoding's own id of a row."""
        self.token_bytes(row)  # refuses what is no row
        return int(self.originals[row])

    def encode_array(self, text: str) -> np.ndarray:
        """The rows of a text, (T,) uint32; other threads run meanwhile."""
        return self.rows(original_ids(self.encoding, text))

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The rows of the encoding's ids; one that has none becomes those of its bytes.

        Args:
            ids: the encoding's own ids, (T,).

        Returns:
            rows, (T′,) uint32 with T′ ≥ T.
        """
        rows = self._row_of[ids]
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            spellings = [_bytes_of(self.encoding, int(ids[place])) for place in missing]
            repeats = np.ones(len(rows), np.int64)
            repeats[missing] = [len(spelling) for spelling in spellings]
            rows = np.repeat(rows, repeats)
            rows[rows < 0] = self._byte_rows[list(b"".join(spellings))]
        return rows.astype(np.uint32)

    def _write(self, path: Path) -> None:
        is_range = len(self.originals) == self.originals[-1] + 1
        rows = {"size": self.size} if is_range else {"ids": self.originals.tolist()}
        # the ranks with them: what a run trained needs no cache and no network on any machine
        self._write_envelope(path, encoding=self.name, **rows, carried=described(self.encoding))


def open_encoding(name: str) -> tiktoken.Encoding:
    """An encoding by its name; its ranks come from tiktoken's cache, or once from the network.

    Raises:
        ArgumentError: no encoding has this name.
        TextError: the ranks are neither in the cache nor to be had.
    """
    import tiktoken

    check_name(name)
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # the errors of `requests` are OSErrors
        raise TextError(
            f"cannot get the ranks of {name} ({type(error).__name__})",
            expected="them in tiktoken's cache, or a network to fetch them from",
            remedy="connect once, set TIKTOKEN_CACHE_DIR to a folder that has them, "
            "or train a tokenizer of your own (bpe)",
        ) from error


def check_name(name: str, others: tuple[str, ...] = ()) -> None:
    """Raise an `ArgumentError` unless the name is an encoding's, or one of the others."""
    import tiktoken

    names = [*others, *tiktoken.list_encoding_names()]
    if name not in names:
        close = get_close_matches(name, names, 1)
        raise ArgumentError(
            f"no tokenizer named {name!r}",
            expected=f"one of {', '.join(names)}",
            remedy=f"did you mean {close[0]}?" if close else None,
        )


def original_ids(encoding: tiktoken.Encoding, text: str) -> np.ndarray:
    """The encoding's own ids of a text, (T,) uint32; special tokens' text is ordinary text."""
    return encoding.encode_to_numpy(whole_characters(text), disallowed_special=())


def single_bytes(encoding: tiktoken.Encoding) -> np.ndarray:
    """The ids of the 256 single bytes, in the order of the bytes, (256,) int64."""
    return np.array([encoding.encode_single_token(bytes([byte])) for byte in range(256)])


def described(encoding: tiktoken.Encoding) -> dict[str, Any]:
    """What `encoding_of` makes the same encoding from, ready for JSON.

    All ranks, since a text's ids depend on tokens too that training never saw: 572 kB of compressed
    text for `cl100k_base`.

    `tokens` holds a byte for the length of each token in the order of the ranks, 0 where a rank has
    none, then the tokens. No encoding of tiktoken has a token of more than 255 bytes.
    """
    # tiktoken's own README makes encodings from these three attributes of others
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


def encoding_of(name: str, carried: Mapping[str, Any]) -> tiktoken.Encoding:
    """The encoding that `described` described.

    Raises:
        ArgumentError: ranks that cannot be unpacked.
    """
    import tiktoken

    place = carried["ranks"]
    try:
        data = zlib.decompress(base64.b64decode(carried["tokens"], validate=True))
    except (ValueError, zlib.error) as error:
        raise ArgumentError(f"ranks that cannot be unpacked ({error})") from error
    ranks = {}
    for rank, length in enumerate(data[: carried["ranks"]]):
        if length:
            ranks[data[place : place + length]] = rank
            place += length
    return tiktoken.Encoding(
        name,
        pat_str=carried["pattern"],
        mergeable_ranks=ranks,
        special_tokens=carried["special"],
    )


def _bytes_of(encoding: tiktoken.Encoding, id: int) -> bytes:
    try:
        return encoding.decode_single_token_bytes(id)
    except KeyError:  # a gap between the ranks and the special tokens
        return b""
