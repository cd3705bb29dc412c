"""WordPiece, the tokenizer of BERT: words in pieces, and the frame of a text or of a pair.

Source: Wu et al. 2016 (arXiv:1609.08144), section 4.1; as BERT uses it, Devlin et al. 2018
(arXiv:1810.04805). Hugging Face `tokenizers` encodes and learns; the file is its `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from heedful.errors import ArgumentError, TextError
from heedful.text.library_tokenizer import LibraryTokenizer
from heedful.text.tokenizer import whole_characters

if TYPE_CHECKING:
    import tokenizers

# In the order of the ids that a trained vocabulary gives them.
NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
NEEDED = ("unk", "cls", "sep")


class WordPieceTokenizer(LibraryTokenizer):
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
        if not library.num_special_tokens_to_add(False):
            from tokenizers.processors import BertProcessing

            sep, cls = ((named[role], self.special[role]) for role in ("sep", "cls"))
            library.post_processor = BertProcessing(sep, cls)
        super().__init__(library, str.encode)

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
            ArgumentError: the vocabulary has no room for the text's characters.
            TextError: no words, or a text that UTF-8 cannot hold.
        """
        from tokenizers import trainers

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


def wordpiece_library(
    vocabulary: Mapping[str, int],
    *,
    lowercase: bool = True,
    unknown: str | None = None,
) -> tokenizers.Tokenizer:
    """A vocabulary as a tokenizer of Hugging Face `tokenizers`, set up as BERT's are.

    Args:
        vocabulary: from each piece to its id.
        lowercase: uncased, so without accents too.
        unknown: the piece for unknown words; default [UNK].
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    library = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=unknown or NAMES["unk"]))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
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
