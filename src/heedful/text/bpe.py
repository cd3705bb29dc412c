"""Byte-pair encoding (BPE): byte-level, trained or loaded; and SentencePiece BPE, only loaded.

BPE: Sennrich, Haddow & Birch 2016 (arXiv:1508.07909). Byte-level BPE splits text as GPT-2 does:
Radford et al. 2019, section 2.2. Hugging Face `tokenizers` trains it and defines its file,
`tokenizer.json`. `tiktoken` encodes several times faster; it is used where both provably agree.

SentencePiece BPE merges characters, and spells unknown characters with byte tokens, as in Llama 2
and Mistral: Kudo and Richardson 2018, *SentencePiece* (arXiv:1808.06226). `▁` is a space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError, valid_unicode
from heedful.text.library_tokenizer import LibraryTokenizer
from heedful.text.sources import MAX_WORD, split_text
from heedful.text.tiktoken_encoding import original_ids
from heedful.text.tokenizer import check_vocabulary

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

# GPT-2's pattern, in tiktoken's faster form; tests compare it with the pattern in `tokenizers`.
SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# The decoder's steps in `tokenizers`; STRIP removes the space that encoding adds
SPACES = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
DECODING = [SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


class BPETokenizer(LibraryTokenizer):
    """Byte-level BPE: tokens are frequent byte strings, and all 256 single bytes.

    Any text encodes, and decodes to exactly the same text. A special token in a text, such as
    <|im_start|> in a chat, is recognised, as in transformers; a trained tokenizer has none.
    `encoding` is the same tokenizer in tiktoken, or None if there is none.

    Args:
        library: a byte-level BPE tokenizer of Hugging Face `tokenizers`.

    Raises:
        ArgumentError: the tokenizer is of another type, or a token is not in the byte alphabet.

    >>> tokenizer = BPETokenizer.train(["low lower lowest " * 9], vocabulary=262)
    >>> tokenizer.pieces(tokenizer.encode("low lowest – slow"))
    ['low', '·lowe', 'st', '·', '<e2>', '<80>', '<93>', '·', 's', 'low']
    """

    kind = "bpe"

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        from tokenizers.decoders import ByteLevel
        from tokenizers.models import BPE

        byte_of = {char: byte for byte, char in enumerate(_byte_alphabet())}
        is_bytes = isinstance(library.model, BPE) and isinstance(library.decoder, ByteLevel)
        if not is_bytes or {*"".join(library.get_vocab(with_added_tokens=False))} - {*byte_of}:
            raise ArgumentError(
                f"a tokenizer of the kind {type(library.model).__name__}",
                expected="byte-level BPE, with tokens in the byte alphabet of GPT-2",
                remedy="train a tokenizer with `heedful train`",
            )
        super().__init__(library, lambda name: bytes(byte_of[char] for char in name))
        self.encoding = _tiktoken_equivalent(library, self._table)

    @classmethod
    def train(cls, pieces: Iterable[str], vocabulary: int) -> BPETokenizer:
        """Train a tokenizer on a text.

        Args:
            pieces: the text in pieces; `tokenizers` keeps each distinct word in memory, so pass a
                sample of a long text.
            vocabulary: the number of tokens, at least 256; the result has fewer if the text has
                no more pairs to merge.

        Raises:
            ArgumentError: the vocabulary is too small.
            TextError: UTF-8 cannot encode the text.
        """
        from tokenizers import pre_tokenizers, trainers

        check_vocabulary(vocabulary)
        library = _new_library()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        parts = (part for piece in pieces for part in split_text([valid_unicode(piece)], MAX_WORD))
        library.train_from_iterator(parts, trainer)
        return cls(library)

    def encode_array(self, text: str) -> np.ndarray:
        """Return the ids of a text, (T,) uint32; releases the GIL."""
        if self.encoding is None:
            return super().encode_array(text)
        return original_ids(self.encoding, text)


class RobertaTokenizer(BPETokenizer):
    """Byte-level BPE that adds special tokens around a text or a pair, as RoBERTa and BERT need.

    Source: Liu et al. 2019, *RoBERTa* (arXiv:1907.11692). The tokenizer's file defines the special
    tokens and their places, such as <s> text </s> or <s> text </s></s> second </s>. If it does not
    say which of them is <mask>, <pad> and so on, the names are RoBERTa's. Special tokens in a text,
    such as <mask>, are recognised.

    Args:
        bare: a tokenizer from `load_tokenizer`.

    >>> bare = BPETokenizer.train(["low lower lowest " * 9], vocabulary=262)
    >>> tokenizer = RobertaTokenizer(bare)
    >>> tokenizer.pieces(tokenizer.inputs("low lowest").ids)  # its vocabulary lacks <s> and </s>
    ['low', '·lowe', 'st']
    """

    def __init__(self, bare: BPETokenizer) -> None:
        super().__init__(bare._library)
        ids = {role: bare._library.token_to_id(token) for role, token in ROBERTA.items()}
        defaults = {role: id for role, id in ids.items() if id is not None}
        self.special = {**defaults, **bare.special}

    def append_token(self, text: str, token: int) -> str:
        """Append a token to the text before a <mask>; the token replaces the <mask>."""
        mask = self._library.get_added_tokens_decoder().get(self.special.get("mask", -1))
        # a <mask> with `lstrip` includes the space before it; so does the token that replaces it
        has_space = mask is not None and mask.lstrip
        return (text.rstrip() if has_space else text) + self.decode([token])


class SentencePieceTokenizer(LibraryTokenizer):
    """SentencePiece BPE: tokens are frequent strings, and all 256 single bytes.

    Any text encodes, and decodes to the same text, with two exceptions: `▁` becomes a space, and
    decoding does not undo the file's normaliser. If the file requires it, encoding adds a space
    before a text, and decoding removes it. A special token in a text is recognised.

    Args:
        library: a BPE tokenizer of Hugging Face `tokenizers` with byte fallback.

    Raises:
        ArgumentError: the tokenizer is of another type.
    """

    kind = "sentencepiece"

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        if not is_sentencepiece(library):
            raise ArgumentError(
                f"a tokenizer of the kind {type(library.model).__name__}",
                expected="BPE of characters with bytes for unknown ones, as in Llama 2",
                remedy="open it with `transformers`",
            )
        super().__init__(library, _bytes_of_name)
        self._is_prefixed = STRIP in _decoders(library)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the tokens, without the space that encoding adds before a text."""
        decoded = super().decode_bytes(ids)
        return decoded.removeprefix(b" ") if self._is_prefixed else decoded


def _new_library() -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _tiktoken_equivalent(
    library: tokenizers.Tokenizer, table: Sequence[bytes]
) -> tiktoken.Encoding | None:
    """Return the same tokenizer in tiktoken; None if its results could differ.

    `tokenizers` merges the pair with the earliest rule, tiktoken the pair whose merged token has
    the lowest id. The results differ only where two adjacent tokens spell a third, which another
    pair forms: tiktoken merges the two, `tokenizers` does not, even if the text is just that of
    the third. So both agree if `tokenizers` encodes every token's text as that token.
    """
    import tiktoken

    vocabulary, merges, settings = _json_parts(library)
    if settings != _json_parts(_new_library())[2] or len(vocabulary) != 256 + len(merges):
        return None
    in_order = all(vocabulary.get("".join(pair)) == 256 + k for k, pair in enumerate(merges))
    if not in_order or any(len(library.model.tokenize(token)) > 1 for token in vocabulary):
        return None
    ranks = {token: id for id, token in enumerate(table)}
    return tiktoken.Encoding("bpe", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})


def _json_parts(
    library: tokenizers.Tokenizer,
) -> tuple[dict[str, int], list[list[str]], dict[str, Any]]:
    """Return the learned vocabulary and merges, and all other settings."""
    settings = json.loads(library.to_str())
    return settings["model"].pop("vocab"), settings["model"].pop("merges"), settings


def _byte_alphabet() -> list[str]:
    """Return GPT-2's character for each byte: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def is_sentencepiece(library: tokenizers.Tokenizer) -> bool:
    """Return whether a tokenizer is BPE with all byte tokens and a SentencePiece decoder."""
    from tokenizers.models import BPE

    has_bytes = isinstance(library.model, BPE) and library.model.byte_fallback
    if not has_bytes or _decoders(library) not in (DECODING, [*DECODING, STRIP]):
        return False
    vocabulary = library.get_vocab()
    return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))


def _decoders(library: tokenizers.Tokenizer) -> list[dict]:
    """Return the steps of a tokenizer's decoder as dictionaries."""
    if library.decoder is None:
        return []
    state = json.loads(library.decoder.__getstate__())
    return state.get("decoders", [state])


def _bytes_of_name(name: str) -> bytes:
    byte = BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()
