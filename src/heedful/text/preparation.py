"""Tokenization of a corpus into a token file, with threads and bounded memory."""

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

from heedful.files import atomic_write, make_directory, temporary_file
from heedful.text.bpe import BPETokenizer
from heedful.text.characters import CharacterTokenizer
from heedful.text.sources import FileSource, Source
from heedful.text.tiktoken_encoding import (
    TiktokenTokenizer,
    check_name,
    open_encoding,
    original_ids,
)
from heedful.text.token_file import TokenFile, chunks_of, distinct_ids, id_type, write_ids
from heedful.text.tokenizer import Tokenizer, check_vocabulary
from heedful.text.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import tiktoken

Progress = Callable[[int, int | None], None]
# Size in bytes of the sample, from all parts of a text, that BPE and WordPiece are trained on; it
# bounds the trainer's memory
BPE_SAMPLE = 8 << 20
LEARNED = (BPETokenizer.kind, WordPieceTokenizer.kind, CharacterTokenizer.kind)
_THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)


@dataclass(frozen=True)
class TokenizerChoice:
    """The tokenizer to train on a text, or the tiktoken encoding to open.

    Raises:
        ArgumentError: an invalid field.

    >>> TokenizerChoice("cl100k_bas")
    Traceback (most recent call last):
    ...
    heedful.errors.ArgumentError: no tokenizer named 'cl100k_bas'; expected cl100k_base or ...
    """

    name: str = BPETokenizer.kind
    """`bpe`, `wordpiece` or `characters`, trained on the text; or a tiktoken encoding's name."""

    vocabulary: int = 4096
    """The vocabulary size of `bpe` or `wordpiece`, at least 256; other tokenizers ignore it."""

    compact: bool = True
    """Whether a tiktoken encoding keeps only the ids of the text and of the 256 bytes."""

    def __post_init__(self) -> None:
        if self.is_encoding:
            check_name(self.name, LEARNED)
        check_vocabulary(self.vocabulary)

    @property
    def is_encoding(self) -> bool:
        """Whether this is a tiktoken encoding, which is not learned from the text."""
        return self.name not in LEARNED

    def learn(self, pieces: Iterable[str]) -> Tokenizer:
        """Train the tokenizer on a text in pieces; raise as the `train` of its class."""
        if self.name == CharacterTokenizer.kind:
            return CharacterTokenizer.train(pieces)
        kind = BPETokenizer if self.name == BPETokenizer.kind else WordPieceTokenizer
        return kind.train(pieces, self.vocabulary)

    def from_encoding(self, encoding: tiktoken.Encoding, used: np.ndarray) -> TiktokenTokenizer:
        """Return the tokenizer of an encoding, with rows for the ids that a text uses."""
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
    """Train or open the tokenizer of a text, and write the text's ids to a file.

    Threads tokenize the text piece by piece, so memory does not grow with the text. Standard input
    or a pipe is first copied to a temporary file next to the output.

    Args:
        source: the text, from `open_source`.
        choice: the tokenizer to train or open.
        path: the `.npy` file, written atomically.
        validation: the fraction of ids at the end that is held out for validation.
        progress: called with the number of bytes tokenized so far, and the total (or None).

    Returns:
        the tokenizer, and the memory-mapped ids: uint16 if the tokenizer has at most 65,536 ids,
        else uint32.

    Raises:
        TextError: the text cannot be read, or an encoding's ranks cannot be loaded.
        SaveError: the file cannot be written; an earlier file is intact.
        ArgumentError: the vocabulary is too small, or `validation` leaves no training ids.

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
    with atomic_write(path) as file, _rereadable(source, path) as text:
        tokenizer = _write(text, choice, file, progress)
    return tokenizer, TokenFile(path, validation)


def _write(
    source: Source, choice: TokenizerChoice, file: BinaryIO, progress: Progress | None
) -> Tokenizer:
    if choice.is_encoding:
        return _write_tiktoken(choice, source, file, progress)
    is_sampled = choice.name != CharacterTokenizer.kind
    tokenizer = choice.learn(sample(source, BPE_SAMPLE) if is_sampled else source.pieces())
    ids = _encode_pieces(tokenizer.encode_array, source, progress)
    write_ids(file, ids, id_type(tokenizer.size))
    return tokenizer


def _write_tiktoken(
    choice: TokenizerChoice, source: Source, file: BinaryIO, progress: Progress | None
) -> Tokenizer:
    """Write an encoding's ids to a temporary file, choose new ids, and write the text in these."""
    encoding = open_encoding(choice.name)
    with temporary_file(Path(file.name)) as originals:
        encode = partial(original_ids, encoding)
        write_ids(originals, _encode_pieces(encode, source, progress), np.dtype(np.uint32))
        ids = np.load(originals.name, mmap_mode="r")
        tokenizer = choice.from_encoding(encoding, distinct_ids(ids))
        write_ids(file, map(tokenizer.rows, chunks_of(ids)), id_type(tokenizer.size))
        return tokenizer


def sample(source: Source, size: int) -> Iterator[str]:
    """Sample about `size` bytes of a text: the beginning of each of its pieces.

    >>> from heedful.text import StringSource
    >>> len("".join(sample(StringSource("all work " * 100_000), size=9_000)))
    8999
    """
    share = min(1.0, size / (source.size or size))
    return (piece[: round(len(piece) * share)] for piece in source.pieces())


def _encode_pieces(
    encode: Callable[[str], np.ndarray], source: Source, progress: Progress | None
) -> Iterator[np.ndarray]:
    """Yield the ids of each piece, in order; threads encode a few pieces at a time."""
    pieces, total, completed = source.pieces(), source.size, 0
    with ThreadPoolExecutor(_THREADS) as pool:
        while batch := list(islice(pieces, 2 * _THREADS)):
            for piece, ids in zip(batch, pool.map(encode, batch), strict=True):
                yield ids
                completed += len(piece.encode())
                if progress:
                    progress(completed, total)


@contextmanager
def _rereadable(source: Source, path: Path) -> Iterator[Source]:
    """Return the source; if it can be read only once, a copy on disk."""
    if not source.is_single_use:
        yield source
        return
    with temporary_file(path) as copy:
        copy.writelines(piece.encode() for piece in source.pieces())
        copy.flush()
        yield FileSource((copy.name,))
