"""What a tokenizer of Hugging Face `tokenizers` does, whatever its model: ids, spans, frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heedful.errors import ArgumentError
from heedful.files import replacing
from heedful.text.tokenizer import Tokenizer, whole_characters

if TYPE_CHECKING:
    import tokenizers


class Inputs(NamedTuple):
    """What BERT reads of a text or a pair: ids, and for each 0 or 1, the text that it is of."""

    ids: list[int]
    segments: list[int]


class Span(NamedTuple):
    """The characters that a token stands for: of which of two texts, 0 or 1, from where to where.

    The end is not included.
    """

    text: int
    start: int
    end: int


def kept(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens stay of each of one or two texts, the longer one cut first.

    Args:
        lengths: the tokens of each text, without the frame.
        room: how many tokens there is room for, beside the frame.

    Raises:
        ArgumentError: no room for a token of each.

    >>> kept([7], 5), kept([7, 2], 5), kept([7, 4], 5)
    ([5], [3, 2], [3, 2])
    """
    if room < len(lengths):
        raise ArgumentError(
            f"room for {max(room, 0)} tokens beside the frame of a text",
            expected=f"{len(lengths)} or more",
            cause="a model whose context is as short as the frame",
        )
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer = room - shorter
    return [longer, shorter] if lengths[0] > lengths[1] else [shorter, longer]


def in_contexts(ids: Sequence[int], room: int) -> list[Sequence[int]]:
    """The tokens of a text cut into runs of `room`, the last as long as what is left.

    >>> in_contexts([5, 6, 7, 8, 9], 2), in_contexts([], 2)
    ([[5, 6], [7, 8], [9]], [])
    """
    return [ids[start : start + room] for start in range(0, len(ids), room)]


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`, whose `tokenizer.json` is its file.

    The special tokens around a text or a pair are those of the library's post-processor.

    Args:
        library: the tokenizer; padding and truncation, which its file may ask for, are turned off.
        bytes_of: the bytes of a token by its name in the vocabulary.
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
        """The ids of a text, (T,) uint32, without its frame; other threads run meanwhile."""
        [encoding] = self._library.encode_batch_fast(
            [whole_characters(text)], add_special_tokens=False
        )
        return np.array(encoding.ids, np.uint32)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """As `Tokenizer.spans`, by the library, which may change a text before it cuts it."""
        return self._bare(text).offsets

    def inputs(self, text: str, second: str | None = None, *, most: int | None = None) -> Inputs:
        """A text or a pair in its frame, as the model reads it.

        Args:
            text: the text.
            second: a second text, for a pair.
            most: the most tokens, the frame included; a longer text is cut at its end, of a pair
                the longer one first.

        Raises:
            ArgumentError: `most` has no room for a token of each text in its frame.
        """
        framed, _ = self._framed(text, second, most)
        return Inputs(framed.ids, framed.type_ids)

    def contexts(self, text: str, room: int) -> list[Inputs]:
        """A text of any length cut into runs of `room` tokens, each framed as `inputs` does."""
        whole = self._bare(text)
        whole.truncate(room)
        parts = [part for part in (whole, *whole.overflowing) if len(part)]
        framed = [self._library.post_process(part) for part in parts]
        return [Inputs(part.ids, part.type_ids) for part in framed]

    def framed_spans(
        self, text: str, second: str | None = None, *, most: int | None = None
    ) -> list[Span | None]:
        """For each token of `inputs` what it stands for; None for those of the frame."""
        framed, lengths = self._framed(text, second, most)
        # not by `sequence_ids`, which is None for a first text of one token in a pair
        numbers = iter([number for number, length in enumerate(lengths) for _ in range(length)])
        tokens = zip(framed.special_tokens_mask, framed.offsets, strict=True)
        return [None if is_frame else Span(next(numbers), *span) for is_frame, span in tokens]

    def _bare(self, text: str) -> tokenizers.Encoding:
        return self._library.encode(whole_characters(text), add_special_tokens=False)

    def _framed(
        self, text: str, second: str | None, most: int | None
    ) -> tuple[tokenizers.Encoding, list[int]]:
        """The texts in their frame, and how many tokens are kept of each."""
        encodings = [self._bare(part) for part in (text, second) if part is not None]
        lengths = [len(encoding) for encoding in encodings]
        if most is not None:
            frame = self._library.num_special_tokens_to_add(second is not None)
            lengths = kept(lengths, most - frame)
            for encoding, length in zip(encodings, lengths, strict=True):
                encoding.truncate(length)
        first, *rest = encodings
        return self._library.post_process(first, rest[0] if rest else None), lengths

    def _write(self, path: Path) -> None:
        with replacing(path) as file:
            file.write(self._library.to_str(pretty=True).encode())
