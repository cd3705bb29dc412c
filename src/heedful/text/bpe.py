"""Byte-pair encoding: of bytes, trained on the user's own text or read; of characters, read.

Byte pairs: Sennrich, Haddow & Birch 2016 (arXiv 1508.07909). On bytes, with words split as GPT-2
splits them: Radford et al. 2019, section 2.2. Hugging Face `tokenizers` trains, and the file is
its own `tokenizer.json`; `tiktoken` encodes, several times as fast, where both must agree.

Pairs of characters, with bytes for unknown ones, as Llama 2 and Mistral have them: Kudo and
Richardson 2018, *SentencePiece* (arXiv:1808.06226). A word begins with `▁`, for the space before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import ArgumentError
from heedful.text.library_tokenizer import LibraryTokenizer
from heedful.text.sources import cut
from heedful.text.tokenizer import check_vocabulary, whole_characters

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

# GPT-2's split, as tiktoken writes it for speed; tests compare it with the one in `tokenizers`.
SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_LONGEST = 1000  # characters of a word: each join of a pair walks along all words that have it

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# What its decoder does, in `tokenizers`' words; the last takes away the space that encoding adds
DECODING = ["Replace", "ByteFallback", "Fuse"]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


class BPETokenizer(LibraryTokenizer):
    """Tokens are byte strings that occur often; all 256 bytes are among them.

    So any text encodes, and decodes to itself exactly. Text that spells a special token is
    ordinary text.

    Args:
        library: a byte-level BPE tokenizer of Hugging Face `tokenizers`.

    Raises:
        ArgumentError: the tokenizer is of another kind.

    >>> tokenizer = BPETokenizer.train(["low lower lowest " * 9], vocabulary=262)
    >>> tokenizer.pieces(tokenizer.encode("low lowest – slow"))
    ['low', '·lowe', 'st', '·', '<e2>', '<80>', '<93>', '·', 's', 'low']
    """

    kind = "bpe"

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        from tokenizers.decoders import ByteLevel
        from tokenizers.models import BPE

        if not isinstance(library.model, BPE) or not isinstance(library.decoder, ByteLevel):
            raise ArgumentError(
                f"a tokenizer of the kind {type(library.model).__name__}",
                expected="byte-level BPE",
                remedy="train one with `heedful train`",
            )
        library.encode_special_tokens = True
        byte_of = {char: byte for byte, char in enumerate(_byte_alphabet())}
        try:
            super().__init__(library, lambda name: bytes(byte_of[char] for char in name))
        except KeyError as error:
            raise ArgumentError(
                f"a token with the character {error}",
                expected="tokens in the byte alphabet of GPT-2",
                remedy="train a tokenizer with `heedful train`",
            ) from None
        self._fast = _fast(library, self._table)

    @classmethod
    def train(cls, pieces: Iterable[str], vocabulary: int) -> BPETokenizer:
        """The tokenizer of a text that comes in pieces.

        Args:
            pieces: the text; `tokenizers` keeps each distinct word, so bound it where it is long.
            vocabulary: the number of tokens, 256 or more; fewer come out where the text has no
                more pairs to join.

        Raises:
            ArgumentError: the vocabulary is too small.
            TextError: the text is not one that UTF-8 can hold.
        """
        from tokenizers import pre_tokenizers, trainers

        check_vocabulary(vocabulary)
        library = _untrained()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        parts = (part for piece in pieces for part in cut([whole_characters(piece)], _LONGEST))
        library.train_from_iterator(parts, trainer)
        return cls(library)

    def encode_array(self, text: str) -> np.ndarray:
        """The ids of a text, (T,) uint32; other threads run meanwhile."""
        if self._fast is None:
            return super().encode_array(text)
        return self._fast.encode_to_numpy(whole_characters(text), disallowed_special=())


class FramedTokenizer(BPETokenizer):
    """Byte-level BPE with the special tokens that stand around a text or a pair.

    Source: Liu et al. 2019, *RoBERTa* (arXiv:1907.11692); a BERT may be trained on such tokens too.
    Which ones is what the tokenizer's file says. Where it says nothing, it is RoBERTa's frame,
    <s> text </s> or <s> text </s></s> second </s>, if the vocabulary has the two. Special tokens
    such as <mask> are recognised in a text.

    Args:
        bare: the tokenizer as `load_tokenizer` gives it; it stays as it is.

    >>> bare = BPETokenizer.train(["low lower lowest " * 9], vocabulary=262)
    >>> framed = FramedTokenizer(bare)
    >>> framed.pieces(framed.inputs("low lowest").ids)  # it knows no <s> and no </s>
    ['low', '·lowe', 'st']
    """

    def __init__(self, bare: BPETokenizer) -> None:
        library = type(bare._library).from_str(bare._library.to_str())
        usual = {role: library.token_to_id(token) for role, token in ROBERTA.items()}
        known = {role: id for role, id in usual.items() if id is not None}
        self.special = {**known, **bare.special}
        names = {role: str(library.id_to_token(id)) for role, id in self.special.items()}
        added = library.get_added_tokens_decoder()
        # one that was added before keeps what it does with the space beside it
        library.add_special_tokens(
            [names[role] for role, id in self.special.items() if id not in added]
        )
        super().__init__(library)
        library.encode_special_tokens = False
        self._fast = None  # tiktoken would take the text of a special token for words
        if not library.num_special_tokens_to_add(False) and {"cls", "sep"} <= names.keys():
            from tokenizers.processors import RobertaProcessing

            sep, cls = ((names[role], self.special[role]) for role in ("sep", "cls"))
            library.post_processor = RobertaProcessing(sep, cls)

    def joined(self, before: str, token: int) -> str:
        """A text with one more token after it, in the place of a <mask>."""
        mask = self._library.get_added_tokens_decoder().get(self.special.get("mask", -1))
        # such a <mask> has taken the space before it, and the token brings its own
        taken = mask is not None and mask.lstrip
        return (before.rstrip() if taken else before) + self.decode([token])


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
        super().__init__(library, _bytes_named)
        self._is_prefixed = STRIP in _decoders(library)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, without the space that encoding put before the text."""
        found = super().decode_bytes(ids)
        return found.removeprefix(b" ") if self._is_prefixed else found


def _untrained() -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _fast(library: tokenizers.Tokenizer, table: Sequence[bytes]) -> tiktoken.Encoding | None:
    """The same tokenizer in tiktoken; None for one that differs in more than what it learned.

    `tokenizers` joins the pair of the earliest merge, tiktoken the pair whose joined token has the
    lowest id. They could part only at two neighbours whose joined token comes from another merge.
    No join crossed the ends of these two, so they stand there too when that token's text is
    encoded alone, and stay two. Where each token alone is encoded as itself, this never happens.
    """
    import tiktoken

    vocabulary, merges, settings = _parts(library)
    if settings != _parts(_untrained())[2] or len(vocabulary) != 256 + len(merges):
        return None
    in_order = all(vocabulary.get("".join(pair)) == 256 + k for k, pair in enumerate(merges))
    if not in_order or any(len(library.model.tokenize(token)) > 1 for token in vocabulary):
        return None
    ranks = {token: id for id, token in enumerate(table)}
    return tiktoken.Encoding("bpe", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})


def _parts(
    library: tokenizers.Tokenizer,
) -> tuple[dict[str, int], list[list[str]], dict[str, Any]]:
    """What the library learned, vocabulary and merges, and everything else about it."""
    settings = json.loads(library.to_str())
    return settings["model"].pop("vocab"), settings["model"].pop("merges"), settings


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where it prints, else the next from U+0100 on."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in itself else next(others)) for byte in range(256)]


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


def _bytes_named(name: str) -> bytes:
    byte = BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()
