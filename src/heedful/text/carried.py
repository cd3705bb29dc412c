"""An encoding of tiktoken as a file carries it: its ranks, whole, small and with a checksum.

What a text's ids are depends on all ranks, also on those of tokens that training never saw. So all
are kept: 644 kB of tokens for `cl100k_base`, 572 kB as compressed text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heedful.errors import ArgumentError

if TYPE_CHECKING:
    import tiktoken

LONGEST = 255  # bytes of a token, as its length is one byte


def described(encoding: tiktoken.Encoding) -> dict[str, Any]:
    """What `encoding_of` makes the same encoding from, ready for JSON.

    `tokens` holds a byte for the length of each token in the order of the ranks, 0 where a rank has
    none, then the tokens.

    Raises:
        ArgumentError: a token of more than 255 bytes; no encoding of tiktoken has one.
    """
    # tiktoken's own README makes encodings from these three attributes of others
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    tokens = [b""] * (max(ranks.values()) + 1)
    for token, rank in ranks.items():
        tokens[rank] = token
    if max(map(len, tokens)) > LONGEST:
        raise ArgumentError(f"a token of {max(map(len, tokens))} bytes", expected="255 at most")
    data = bytes(map(len, tokens)) + b"".join(tokens)
    about = {"pattern": encoding._pat_str, "special": dict(encoding._special_tokens)}
    return {
        **about,
        "ranks": len(tokens),
        "tokens": base64.b64encode(zlib.compress(data, 9)).decode("ascii"),
        "sha256": _checksum(about, data),
    }


def encoding_of(name: str, carried: Mapping[str, Any]) -> tiktoken.Encoding:
    """The encoding that `described` described.

    Raises:
        ArgumentError: what is carried is not what was written.
    """
    import tiktoken

    try:
        data = zlib.decompress(base64.b64decode(carried["tokens"], validate=True))
    except (ValueError, zlib.error) as error:
        raise ArgumentError(f"ranks that cannot be unpacked ({error})") from error
    about = {"pattern": carried["pattern"], "special": carried["special"]}
    if _checksum(about, data) != carried["sha256"]:
        raise ArgumentError("ranks that do not fit their checksum")
    ranks, place = {}, carried["ranks"]
    for rank, length in enumerate(data[: carried["ranks"]]):
        if length:
            ranks[data[place : place + length]] = rank
            place += length
    return tiktoken.Encoding(
        name, pat_str=about["pattern"], mergeable_ranks=ranks, special_tokens=about["special"]
    )


def _checksum(about: Mapping[str, Any], data: bytes) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + data).hexdigest()
