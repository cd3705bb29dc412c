"""WordPiece, the tokenizer of BERT: words in pieces, and the frame of a text or of a pair.

Source: Wu et al. 2016 (arXiv:1609.08144), section 4.1; as BERT uses it, Devlin et al. 2018
(arXiv:1810.04805). Hugging Face `tokenizers` encodes and learns; the file is its `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from heedful.errors import ArgumentError, TextError
from heedful.text.framing import Inputs, Span, in_contexts, kept
from heedful.text.tokenizer import Tokenizer, check_learnable, whole_characters

if TYPE_CHECKING:
    import tokenizers

# In the order of the ids that a trained vocabulary gives them.
NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
NEEDED = ("unk", "cls", "sep")


class WordPieceTokenizer(Tokenizer):
    """Words are cut into the longest known pieces; one that goes on within a word begins with ##.

    Text is normalised first (an uncased tokenizer makes it lower case, without accents), and a
    word that cannot be cut is [UNK]; so decoding gives back words, not always the text. Special
    tokens such as [MASK] are recognised in a text.

    Args:
        library: a WordPiece tokenizer of Hugging Face `tokenizers`.
        names: special tokens by their role, where they are not BERT's own.

    Raises:
        ArgumentError: the tokenizer is of another kind, or lacks a special token that BERT needs.

    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "robots", "trans", "##formers", ","]
    >>> ids = {word: id for id, word in enumerate(words)}
    >>> tokenizer = WordPieceTokenizer(wordpiece_library(ids))
    >>> inputs = tokenizer.inputs("Transformers, [MASK]", "Robots!")
    >>> tokenizer.pieces(inputs.ids)
    ['[CLS]', 'trans', '##formers', ',', '[MASK]', '[SEP]', 'robots', '[UNK]', '[SEP]']
    >>> inputs.segments
    [0, 0, 0, 0, 0, 0, 1, 1, 1]
    """

    kind = "wordpiece"

    def __init__(
        self, library: tokenizers.Tokenizer, names: Mapping[str, str] | None = None
    ) -> None:
        from tokenizers.models import WordPiece

        if not isinstance(library.model, WordPiece):
            raise ArgumentError(
                f"a tokenizer of the kind {type(library.model).__name__}", expected="WordPiece"
            )
        named = {**NAMES, **(names or {})}
        ids = {role: library.token_to_id(token) for role, token in named.items()}
        missing = [named[role] for role in NEEDED if ids[role] is None]
        if library.model.unk_token not in library.get_vocab(with_added_tokens=False):
            missing.append(library.model.unk_token)  # added is not enough: encoding would fail
        if missing:
            raise ArgumentError(
                f"a vocabulary without {', '.join(dict.fromkeys(missing))}",
                expected="BERT's special tokens",
                cause="the vocabulary of another model, or only a part of it",
            )
        self.special = {role: id for role, id in ids.items() if id is not None}
        library.add_special_tokens([named[role] for role in self.special])
        library.no_padding()  # a file may ask for both, for batches of one length
        library.no_truncation()
        names_of = {id: name for name, id in library.get_vocab().items()}
        super().__init__([names_of.get(id, "").encode() for id in range(max(names_of) + 1)])
        self._library = library

    @classmethod
    def train(
        cls, pieces: Iterable[str], vocabulary: int, *, lowercase: bool = True
    ) -> WordPieceTokenizer:
        """The tokenizer of a text that comes in pieces; the same for the same text, always.

        Args:
            pieces: the text; it is kept whole, so bound it where it is long.
            vocabulary: the number of tokens, special ones included; fewer come out where the text
                has no more pairs to join.
            lowercase: uncased, so without accents too.

        Raises:
            ArgumentError: the vocabulary has no room for the text's characters, or is so large that
                the library has no memory.
            TextError: no words, or a text that UTF-8 cannot hold.
        """
        from tokenizers import trainers

        check_learnable(vocabulary)
        texts = [whole_characters(piece) for piece in pieces]
        library = wordpiece_library({NAMES["unk"]: 0}, lowercase=lowercase)
        base = [*NAMES.values(), *_characters(library, texts)]
        if vocabulary < len(base):
            raise ArgumentError(
                f"a vocabulary of {vocabulary}",
                expected=f"{len(base)} or more",
                cause=f"{len(NAMES)} special tokens, and each character at the beginning and "
                "within a word",
                remedy=f"try {max(4096, 2 * len(base))}",
            )
        # The trainer gives characters within words their ids in the order of a hash table, another
        # in each process, and so joins equally frequent pairs in another order. Tokens that are
        # named before the training have fixed ids.
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocabulary, special_tokens=base, show_progress=False
        )
        library.train_from_iterator(texts, trainer)
        learned = library.get_vocab(with_added_tokens=False)
        return cls(wordpiece_library(learned, lowercase=lowercase))

    def encode_array(self, text: str) -> np.ndarray:
        """The ids of a text, (T,) uint32, without [CLS] and [SEP]."""
        [encoding] = self._library.encode_batch_fast(
            [whole_characters(text)], add_special_tokens=False
        )
        return np.array(encoding.ids, np.uint32)

    def inputs(self, text: str, second: str | None = None, *, most: int | None = None) -> Inputs:
        """[CLS] text [SEP], or [CLS] text [SEP] second [SEP], as BERT reads them.

        Args:
            text: the text.
            second: a second text, for a pair.
            most: the most tokens, the frame included; a longer text is cut at its end, of a pair
                the longer one first.

        Raises:
            ArgumentError: `most` has no room for a token of each text in its frame.
        """
        sep = self.special["sep"]
        parts = [self.encode(part) for part in (text, second) if part is not None]
        if most is not None:
            lengths = kept([len(part) for part in parts], most - 1 - len(parts))
            parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        ids, segments = [self.special["cls"]], [0]
        for segment, part in enumerate(parts):
            ids += [*part, sep]
            segments += [segment] * (len(part) + 1)
        return Inputs(ids, segments)

    def contexts(self, text: str, room: int) -> list[Inputs]:
        """A text of any length cut into runs of `room` tokens, each framed as `inputs` does."""
        cls, sep = self.special["cls"], self.special["sep"]
        parts = in_contexts(self.encode(text), room)
        return [Inputs([cls, *part, sep], [0] * (len(part) + 2)) for part in parts]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """As `Tokenizer.spans`, by the library, which changes a text before it cuts it."""
        return self._library.encode(whole_characters(text), add_special_tokens=False).offsets

    def framed_spans(
        self, text: str, second: str | None = None, *, most: int | None = None
    ) -> list[Span | None]:
        """For each token of `inputs` what it stands for; None for those of the frame."""
        parts = [self.spans(part) for part in (text, second) if part is not None]
        if most is not None:
            lengths = kept([len(part) for part in parts], most - 1 - len(parts))
            parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        found: list[Span | None] = [None]
        for number, part in enumerate(parts):
            found += [*(Span(number, *span) for span in part), None]
        return found

    def joined(self, before: str, token: int) -> str:
        """A text with one more token after it, in the place of a [MASK]."""
        word = self.token_bytes(token).decode("utf-8", "replace")
        goes_on = word.startswith("##")  # a piece within a word: it joins the one before
        return (before.rstrip() if goes_on else before) + word.removeprefix("##")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The words of the tokens, with spaces between them; errors as `token_bytes`."""
        ids = list(ids)
        for token in ids:
            self.token_bytes(token)
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text.encode()

    def _write(self, path: Path) -> None:
        self._write_text(path, self._library.to_str(pretty=True))


def wordpiece_library(
    vocabulary: Mapping[str, int],
    *,
    lowercase: bool = True,
    names: Mapping[str, str] | None = None,
) -> tokenizers.Tokenizer:
    """A vocabulary as a tokenizer of Hugging Face `tokenizers`, set up as BERT's are.

    Args:
        vocabulary: from each piece to its id.
        lowercase: uncased, so without accents too.
        names: special tokens by their role, where they are not BERT's own.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    named = {**NAMES, **(names or {})}
    library = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=named["unk"]))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    cls, sep = named["cls"], named["sep"]
    if cls in vocabulary and sep in vocabulary:  # for those who open the file elsewhere
        library.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
        )
    return library


def _characters(library: tokenizers.Tokenizer, texts: Iterable[str]) -> list[str]:
    """What words begin with, then ## and what stands within them, in the order of Unicode."""
    words = {
        word
        for text in texts
        for word, _ in library.pre_tokenizer.pre_tokenize_str(
            library.normalizer.normalize_str(text)
        )
    }
    if not words:
        raise TextError("a text without words", expected="some to learn pieces from")
    within = {char for word in words for char in word[1:]}
    return sorted({word[0] for word in words}) + [f"##{char}" for char in sorted(within)]
