"""Byte pairs for a model that reads framed texts, as RoBERTa's tokenizer gives them.

Source: Liu et al. 2019, *RoBERTa* (arXiv:1907.11692); a BERT may be trained on such tokens too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heedful.text.bpe import BPETokenizer
from heedful.text.framing import Inputs, Span, kept
from heedful.text.tokenizer import whole_characters

if TYPE_CHECKING:
    import tokenizers

NAMES = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


class FramedTokenizer(BPETokenizer):
    """Byte-level BPE with the special tokens that stand around a text or a pair.

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
        usual = {role: library.token_to_id(token) for role, token in NAMES.items()}
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

    def encode_array(self, text: str) -> np.ndarray:
        """The ids of a text, (T,) uint32, without its frame."""
        encoding = self._library.encode(whole_characters(text), add_special_tokens=False)
        return np.array(encoding.ids, np.uint32)

    def inputs(self, text: str, second: str | None = None, *, most: int | None = None) -> Inputs:
        """The text or the pair in its frame; `most` and errors as `WordPieceTokenizer.inputs`."""
        framed = self._framed(text, second, most)
        return Inputs(framed.ids, framed.type_ids)

    def contexts(self, text: str, room: int) -> list[Inputs]:
        """A text of any length cut into runs of `room` tokens, each framed as `inputs` does."""
        whole = self._library.encode(whole_characters(text), add_special_tokens=False)
        whole.truncate(room)
        parts = [part for part in (whole, *whole.overflowing) if len(part)]
        framed = [self._library.post_process(part) for part in parts]
        return [Inputs(part.ids, part.type_ids) for part in framed]

    def framed_spans(
        self, text: str, second: str | None = None, *, most: int | None = None
    ) -> list[Span | None]:
        """For each token of `inputs` what it stands for; None for those of the frame."""
        framed = self._framed(text, second, most)
        pairs = zip(framed.sequence_ids, framed.offsets, strict=True)
        return [None if number is None else Span(number, *span) for number, span in pairs]

    def _framed(self, text: str, second: str | None, most: int | None) -> tokenizers.Encoding:
        texts = [text] if second is None else [text, second]
        encodings = [
            self._library.encode(whole_characters(part), add_special_tokens=False) for part in texts
        ]
        if most is not None:
            frame = self._library.num_special_tokens_to_add(second is not None)
            lengths = kept([len(encoding) for encoding in encodings], most - frame)
            for encoding, length in zip(encodings, lengths, strict=True):
                encoding.truncate(length)
        first, *rest = encodings
        return self._library.post_process(first, rest[0] if rest else None)

    def joined(self, before: str, token: int) -> str:
        """A text with one more token after it, in the place of a <mask>."""
        tokens = self._library.get_added_tokens_decoder()
        mask = tokens.get(self.special.get("mask", -1))
        # such a <mask> has taken the space before it, and the token brings its own
        taken = mask is not None and mask.lstrip
        return (before.rstrip() if taken else before) + self.decode([token])
