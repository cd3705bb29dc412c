"""Byte pairs of characters, with bytes for those it does not know, as SentencePiece makes them.

Llama 2 and Mistral read text so. Source: Kudo and Richardson 2018, *SentencePiece*
(arXiv:1808.06226). A word begins with `▁`, which stands for the space before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from heedful.errors import ArgumentError
from heedful.text.library import LibraryTokenizer

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# What its decoder does, in `tokenizers`' words; the last takes away the space that encoding adds
DECODING = ["Replace", "ByteFallback", "Fuse"]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


class SentencePieceTokenizer(LibraryTokenizer):
    """Tokens are strings that occur often, and all 256 bytes, for characters without a token.

    So any text encodes, and decodes to itself, with two exceptions: `▁` comes back as a space, and
    what a normaliser in the file changes stays changed. Where the file says so, a space is put
    before a text, and taken away again. Text that spells a special token is ordinary text.

    Args:
        library: a BPE tokenizer of Hugging Face `tokenizers` with byte fallback.

    Raises:
        ArgumentError: the tokenizer is of another kind.
    """

    kind = "sentencepiece"

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        if not is_sentencepiece(library):
            raise ArgumentError(
                f"a tokenizer of the kind {type(library.model).__name__}",
                expected="BPE of characters with bytes for unknown ones, as Llama 2 has it",
                remedy="open it with `transformers`",
            )
        library.encode_special_tokens = True
        super().__init__(library, _bytes)
        self._is_prefixed = STRIP in _decoders(library)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, without the space that encoding put before the text."""
        found = super().decode_bytes(ids)
        return found.removeprefix(b" ") if self._is_prefixed else found


def is_sentencepiece(library: tokenizers.Tokenizer) -> bool:
    """Whether a library's tokenizer is BPE with all bytes, and decodes as SentencePiece does."""
    from tokenizers.models import BPE

    if not isinstance(library.model, BPE) or not library.model.byte_fallback:
        return False
    vocabulary, decoders = library.get_vocab(), _decoders(library)
    kinds = [decoder["type"] for decoder in decoders]
    decodes = kinds[:3] == DECODING and decoders[3:] in ([], [STRIP])
    spaces = decodes and decoders[0] | {"type": ""} == {
        "type": "", "pattern": {"String": SPACE}, "content": " "
    }  # fmt: skip
    return spaces and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))


def _decoders(library: tokenizers.Tokenizer) -> list[dict]:
    """The steps of its decoder."""
    if library.decoder is None:
        return []
    described = json.loads(library.decoder.__getstate__())
    return described.get("decoders", [described])


def _bytes(name: str) -> bytes:
    byte = BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()
