"""From a text to a tokenizer and a token file, as a stream, on all cores, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from heedful.files import beside, make_directory, replacing
from heedful.text.bpe import BPETokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.sources import FileSource, Source
from heedful.text.tiktoken_encoding import (
    TiktokenTokenizer,
    check_name,
    open_encoding,
    original_ids,
)
from heedful.text.token_file import TokenFile, chunks_of, distinct, id_type, write_ids
from heedful.text.tokenizer import Tokenizer, check_vocabulary
from heedful.text.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import tiktoken

Progress = Callable[[int, int | None], None]
BPE_SAMPLE = 8 << 20  # bytes that pieces are learned from, from all over the text; they, and so
# the trainer's memory, do not grow with it
LEARNED = (BPETokenizer.kind, WordPieceTokenizer.kind, CharacterTokenizer.kind)
_THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)


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
        check_vocabulary(self.vocabulary)

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


def prepare(
    source: Source,
    choice: TokenizerChoice,
    path: str | Path,
    *,
    validation: float = 0.1,
    progress: Progress | None = None,
) -> tuple[Tokenizer, TokenFile]:
    """Choose the tokens of a text, and write its ids to a file.

    The text is read as a stream and tokenized by threads (both libraries let go of the
    interpreter's lock), so memory does not grow with it. Standard input is read once, into a
    temporary file beside the output.

    Args:
        source: the text; `open_source` makes one.
        choice: which tokenizer.
        path: the `.npy` file to write, whole or not at all.
        validation: the share of the ids, the last ones, that training does not see.
        progress: called with the bytes that are tokenized, and the bytes there are if known.

    Returns:
        the tokenizer, and the ids by memory map: uint16 where the tokenizer has at most 65,536
        rows, else uint32.

    Raises:
        TextError: the text cannot be read, or the ranks of an encoding cannot be had.
        SaveError: the file cannot be written; what was there before still is.

    >>> import tempfile
    >>> from heedful.text import StringSource
    >>> path = Path(tempfile.mkdtemp()) / "tokens.npy"
    >>> source = StringSource("to be or not to be")
    >>> tokenizer, tokens = prepare(source, TokenizerChoice("characters"), path)
    >>> tokenizer.decode(tokens.train), tokenizer.decode(tokens.validation)
    ('to be or not to ', 'be')
    """
    path = Path(path)
    make_directory(path.parent)
    with replacing(path) as file, _rereadable(source, path) as text:
        tokenizer = _write(text, choice, file, progress)
    return tokenizer, TokenFile(path, validation)


def _write(
    source: Source, choice: TokenizerChoice, file: BinaryIO, progress: Progress | None
) -> Tokenizer:
    if choice.is_encoding:
        return _write_tiktoken(choice, source, file, progress)
    is_sampled = choice.name != CharacterTokenizer.kind
    tokenizer = choice.learn(sample(source, BPE_SAMPLE) if is_sampled else source.pieces())
    ids = _encoded(tokenizer.encode_array, source, progress)
    write_ids(file, ids, id_type(tokenizer.size))
    return tokenizer


def _write_tiktoken(
    choice: TokenizerChoice, source: Source, file: BinaryIO, progress: Progress | None
) -> Tokenizer:
    """The encoding's own ids first; which of them the text uses is known only then."""
    encoding = open_encoding(choice.name)
    with beside(Path(file.name)) as originals:
        encode = partial(original_ids, encoding)
        write_ids(originals, _encoded(encode, source, progress), np.dtype(np.uint32))
        ids = np.load(originals.name, mmap_mode="r")
        tokenizer = choice.rows(encoding, distinct(ids))
        write_ids(file, map(tokenizer.rows, chunks_of(ids)), id_type(tokenizer.size))
        return tokenizer


def sample(source: Source, most: int) -> Iterator[str]:
    """At most about `most` bytes of a text of known size, from all over it: a share of each piece.

    >>> from heedful.text import StringSource
    >>> len("".join(sample(StringSource("all work " * 100_000), most=9_000)))
    8999
    """
    share = min(1.0, most / (source.size or most))
    return (piece[: round(len(piece) * share)] for piece in source.pieces())


def _encoded(
    encode: Callable[[str], np.ndarray], source: Source, progress: Progress | None
) -> Iterator[np.ndarray]:
    """The ids of each piece, in order; threads share the pieces, of which a few are in memory."""
    pieces, total, done = source.pieces(), source.size, 0
    with ThreadPoolExecutor(_THREADS) as pool:
        while batch := list(islice(pieces, 2 * _THREADS)):
            for piece, ids in zip(batch, pool.map(encode, batch), strict=True):
                yield ids
                done += len(piece.encode())
                if progress:
                    progress(done, total)


@contextmanager
def _rereadable(source: Source, path: Path) -> Iterator[Source]:
    """The source itself, or a copy on disk of one that can be read only once."""
    if not source.once:
        yield source
        return
    with beside(path) as copy:
        copy.writelines(piece.encode() for piece in source.pieces())
        copy.flush()
        yield FileSource((copy.name,))
