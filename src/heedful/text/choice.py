"""Which tokenizer a text gets."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.errors import ArgumentError
from heedful.text.bpe import BPETokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.tiktoken_encoding import check_name
from heedful.text.wordpiece import WordPieceTokenizer


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
        own = (BPETokenizer.kind, WordPieceTokenizer.kind, CharacterTokenizer.kind)
        if self.name not in own:
            check_name(self.name, own)
        if self.vocabulary < 256:
            raise ArgumentError(
                f"a vocabulary of {self.vocabulary}",
                expected="256 or more",
                cause="each of the 256 bytes has a token of its own",
                remedy="try 4096",
            )
