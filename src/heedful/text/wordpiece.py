"""WordPiece, the tokenizer of BERT: it splits words into pieces and adds special tokens.

Source: Wu et al. 2016 (arXiv:1609.08144), section 4.1; as BERT uses it, Devlin et al. 2018
(arXiv:1810.04805). Hugging Face `tokenizers` trains it, encodes, and writes `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from heedful.errors import ArgumentError, TextError, valid_unicode
from heedful.text.library_tokenizer import LibraryTokenizer
from heedful.text.sources import MAX_WORD, split_text

if TYPE_CHECKING:
    import tokenizers

# In the order of their ids in a trained vocabulary.
NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
REQUIRED = ("unk", "cls", "sep")


class WordPieceTokenizer(LibraryTokenizer):
    """WordPiece splits words into the longest known pieces; pieces inside a word begin with ##.

    It first normalises the text (an uncased tokenizer converts to lower case and removes accents).
    A word that cannot be split becomes [UNK]. So decoding may return a different text. Special
    tokens in a text, such as [MASK], are recognised.

    Args:
        library: a WordPiece tokenizer of Hugging Face `tokenizers`.
        names: special tokens by their role, if they differ from BERT's.

    Raises:
        ArgumentError: the tokenizer is of another type, or lacks [UNK], [CLS] or [SEP].

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
        tokens = {**NAMES, **(names or {})}
        ids = {role: library.token_to_id(token) for role, token in tokens.items()}
        missing = [tokens[role] for role in REQUIRED if ids[role] is None]
        if library.model.unk_token not in library.get_vocab(with_added_tokens=False):
            missing.append(library.model.unk_token)  # encoding fails if it is only an added token
        if missing:
            raise ArgumentError(
                f"a vocabulary without {', '.join(dict.fromkeys(missing))}",
                expected="BERT's special tokens",
                cause="the vocabulary of another model, or only a part of it",
            )
        self.special = {role: id for role, id in ids.items() if id is not None}
        library.add_special_tokens([tokens[role] for role in self.special])
        if not library.num_special_tokens_to_add(False):
            from tokenizers.processors import BertProcessing

            sep, cls = ((tokens[role], self.special[role]) for role in ("sep", "cls"))
            library.post_processor = BertProcessing(sep, cls)
        super().__init__(library, str.encode)

    @classmethod
    def train(
        cls, pieces: Iterable[str], vocabulary: int, *, lowercase: bool = True
    ) -> WordPieceTokenizer:
        """Train a tokenizer on a text; the result is deterministic.

        Args:
            pieces: the text in pieces. Memory holds all of it, so pass a sample of a long text.
            vocabulary: the number of tokens, special tokens included; the result has fewer if the
                text has no more pairs to merge.
            lowercase: whether to convert to lower case and remove accents.

        Raises:
            ArgumentError: the vocabulary is too small for the text's characters.
            TextError: the text has no words, or UTF-8 cannot encode it.
        """
        from tokenizers import trainers

        texts = [part for p in pieces for part in split_text([valid_unicode(p)], MAX_WORD)]
        library = wordpiece_library({NAMES["unk"]: 0}, lowercase=lowercase)
        base = [*NAMES.values(), *_characters(library, texts)]
        if vocabulary < len(base):
            raise ArgumentError(
                f"a vocabulary of {vocabulary}",
                expected=f"{len(base)} or more",
                cause=f"{len(NAMES)} special tokens, a token for each character that begins a "
                "word, and one for each character within a word",
                remedy=f"try {max(4096, 2 * len(base))}",
            )
        # The trainer would number characters within words in the order of a hash table. This order
        # differs between processes, and with it the merges of equally frequent pairs. As special
        # tokens, the characters have fixed ids.
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocabulary, special_tokens=base, show_progress=False
        )
        library.train_from_iterator(texts, trainer)
        learned = library.get_vocab(with_added_tokens=False)
        return cls(wordpiece_library(learned, lowercase=lowercase))

    def append_token(self, text: str, token: int) -> str:
        """Append a token to the text before a [MASK]; the token replaces the [MASK]."""
        piece = self.token_bytes(token).decode("utf-8", "replace")
        is_inner = piece.startswith("##")  # continues the word before it
        return (text.rstrip() if is_inner else text) + piece.removeprefix("##")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the words of the tokens, separated by spaces; raise as `token_bytes`."""
        ids = list(ids)
        for token in ids:
            self.token_bytes(token)
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text.encode()


def wordpiece_library(
    vocabulary: Mapping[str, int], *, lowercase: bool = True
) -> tokenizers.Tokenizer:
    """Create BERT's tokenizer in Hugging Face `tokenizers`, from a vocabulary.

    Args:
        vocabulary: the id of each piece.
        lowercase: whether to convert to lower case and remove accents.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    library = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=NAMES["unk"]))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library


def _characters(library: tokenizers.Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the characters that begin words, then those within words after ##, both sorted."""
    words = {
        word
        for text in texts
        for word, _ in library.pre_tokenizer.pre_tokenize_str(
            library.normalizer.normalize_str(text)
        )
    }
    if not words:
        raise TextError("a text without words", expected="words to learn pieces from")
    within = {char for word in words for char in word[1:]}
    return sorted({word[0] for word in words}) + [f"##{char}" for char in sorted(within)]
