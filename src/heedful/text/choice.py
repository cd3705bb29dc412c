"""Which tokenizer a text gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heedful.errors import ArgumentError
from heedful.text.bpe import BPETokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.tiktoken_encoding import TiktokenTokenizer, check_name
from heedful.text.tokenizer import Tokenizer
from heedful.text.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import tiktoken

LEARNED = (BPETokenizer.kind, WordPieceTokenizer.kind, CharacterTokenizer.kind)


@dataclass(frozen=True)
class TokenizerChoice:
    """Which tokenizer a text gets.

    Raises:
        ArgumentError: a field that does not fit.

    >>> TokenizerChoice("cl100k_bas")
    Traceback (most recent call last):
    ...
    heedful.errors.ArgumentError: no tokenizer named 'cl100k_bas'; ... did you mean cl100k_base?
    """

    name: str = BPETokenizer.kind
    """`bpe` or `wordpiece`, trained on the text, `characters`, or a tiktoken encoding's name."""

    vocabulary: int = 4096
    """The tokens that `bpe` or `wordpiece` learns, 256 or more; the others find it themselves."""

    compact: bool = True
    """Of a tiktoken encoding, rows only for what the text uses and for the single bytes."""

    def __post_init__(self) -> None:
        if self.is_encoding:
            check_name(self.name, LEARNED)
        if self.vocabulary < 256:
            raise ArgumentError(
                f"a vocabulary of {self.vocabulary}",
                expected="256 or more",
                cause="each of the 256 bytes has a token of its own",
                remedy="try 4096",
            )

    @property
    def is_encoding(self) -> bool:
        """Whether it is one of tiktoken's encodings, and not learned from the text."""
        return self.name not in LEARNED

    def learn(self, pieces: Iterable[str]) -> Tokenizer:
        """The tokenizer that is learned from a text in pieces; errors as its `train`."""
        if self.name == CharacterTokenizer.kind:
            return CharacterTokenizer.train(pieces)
        kind = BPETokenizer if self.name == BPETokenizer.kind else WordPieceTokenizer
        return kind.train(pieces, self.vocabulary)

    def rows(self, encoding: tiktoken.Encoding, used: np.ndarray) -> TiktokenTokenizer:
        """An encoding, with rows for the ids that a text uses."""
        kind = TiktokenTokenizer
        return (kind.compact if self.compact else kind.up_to_largest)(encoding, used)
