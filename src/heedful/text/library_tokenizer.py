"""The base class of tokenizers that use the library `tokenizers` of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heedful.errors import ArgumentError, valid_unicode
from heedful.files import atomic_write
from heedful.text.tokenizer import Tokenizer, encoding_errors

if TYPE_CHECKING:
    import tokenizers


class Inputs(NamedTuple):
    """The input of a BERT: token ids, and segments (0: the first text, 1: the second)."""

    ids: list[int]
    segments: list[int]


class Span(NamedTuple):
    """The characters of a token: `start` to `end` (exclusive) in text 0 or 1 of a pair."""

    text: int
    start: int
    end: int


def split_ids(ids: Sequence[int], room: int) -> list[Sequence[int]]:
    """Split the tokens of a text into parts of `room` tokens; the last may be shorter.

    >>> split_ids([5, 6, 7, 8, 9], 2), split_ids([], 2)
    ([[5, 6], [7, 8], [9]], [])
    """
    return [ids[start : start + room] for start in range(0, len(ids), room)]


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`, saved in the library's format, `tokenizer.json`.

    The library's post-processor adds the special tokens around a text or a pair.

    Args:
        library: the tokenizer; its padding and truncation are turned off.
        bytes_of: returns the bytes of a token from its name in the vocabulary.
    """

    def __init__(self, library: tokenizers.Tokenizer, bytes_of: Callable[[str], bytes]) -> None:
        library.no_padding()
        library.no_truncation()
        added = library.get_added_tokens_decoder()
        names = {id: name for name, id in library.get_vocab().items()}
        super().__init__(
            [
                added[id].content.encode() if id in added else bytes_of(names.get(id, ""))
                for id in range(max(names) + 1)
            ]
        )
        self._library = library

    def encode_array(self, text: str) -> np.ndarray:
        """Return the ids of a text, (T,) uint32, without special tokens; releases the GIL."""
        with encoding_errors():
            [encoding] = self._library.encode_batch_fast(
                [valid_unicode(text)], add_special_tokens=False
            )
        return np.array(encoding.ids, np.uint32)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans as the library computes them; see `Tokenizer.spans`."""
        return self._encode_text(text).offsets

    def inputs(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None
    ) -> Inputs:
        """Encode a text or a pair, with special tokens, as input of the model.

        Args:
            text: the text.
            second: a second text, for a pair.
            max_tokens: the maximum number of tokens, special tokens included. Longer texts are
                truncated at their end; in a pair, the longer text is truncated first.

        Raises:
            ArgumentError: `max_tokens` is too small for one token of each text.
        """
        encoding = self._encode_pair(text, second, max_tokens)
        return Inputs(encoding.ids, encoding.type_ids)

    def contexts(self, text: str, room: int) -> list[Inputs]:
        """Split a text into parts of at most `room` tokens, and add special tokens to each part."""
        encoding = self._encode_text(text)
        encoding.truncate(room)
        parts = [part for part in (encoding, *encoding.overflowing) if len(part)]
        processed = [self._library.post_process(part) for part in parts]
        return [Inputs(part.ids, part.type_ids) for part in processed]

    def input_spans(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None
    ) -> list[Span | None]:
        """Return the characters of each token of `inputs`; None for special tokens."""
        encoding = self._encode_pair(text, second, max_tokens)
        tokens = zip(encoding.sequence_ids, encoding.offsets, strict=True)
        return [None if number is None else Span(number, *span) for number, span in tokens]

    def _encode_text(self, text: str) -> tokenizers.Encoding:
        with encoding_errors():  # `encode` would hold the GIL
            return self._library.encode_batch([valid_unicode(text)], add_special_tokens=False)[0]

    def _encode_pair(
        self, text: str, second: str | None, max_tokens: int | None
    ) -> tokenizers.Encoding:
        """Return the encoding of a text or a pair, truncated, with special tokens."""
        texts = [valid_unicode(part) for part in (text, second) if part is not None]
        if max_tokens is not None:
            room = max_tokens - self._library.num_special_tokens_to_add(second is not None)
            if room < len(texts):
                raise ArgumentError(
                    f"room for {max(room, 0)} tokens beside the special tokens",
                    expected=f"{len(texts)} or more",
                    cause="a context that is too short for a text with its special tokens",
                )
            self._library.enable_truncation(max_tokens)
        try:
            with encoding_errors():
                return self._library.encode_batch([texts[0] if second is None else texts])[0]
        finally:
            self._library.no_truncation()

    def _write(self, path: Path) -> None:
        with atomic_write(path) as file:
            file.write(self._library.to_str(pretty=True).encode())
