"""Sources of text: files, folders, standard input, a string, or the Python language reference.

Texts are streamed. If a text is binary or not UTF-8, an error is raised while it is read.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO, TypeAlias

from heedful.errors import TextError
from heedful.text.example_texts import TITLE, python_reference

STANDARD_INPUT = "-"
PIECE = 1 << 18  # characters; tokenizing a piece takes up to 100 times its size in memory
_BLOCK = 1 << 18  # bytes
MAX_WORD = 1000  # characters; a tokenizer is trained on parts of longer words: merges scan a word

# Signatures of binary formats, whose files need not have a zero byte near their beginning
BINARY = (b"%PDF-", b"\x1f\x8b", b"PK\x03\x04", b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BZh")
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # counts as text; reading it raises an error about UTF-16

# GPT-2, cl100k_base and o200k_base split a text into words by a pattern before they merge bytes.
# Their patterns have no look-behind, and always split after a letter or digit that precedes white
# space or punctuation. So a text split there has the same tokens as the unsplit text
_UP_TO_LAST_SPLIT = re.compile(r".*[^\W_](?=[\s,.;:!?、。，．：；！？])", re.DOTALL)


class SkippedFilesWarning(UserWarning):
    """Warns that binary files of a folder were skipped."""


@dataclass(frozen=True)
class StringSource:
    """A string as a source, in pieces that end after a word where possible.

    title: a name for messages. is_single_use: whether the text can be read only once.

    >>> "".join(StringSource("to be or not to be").pieces(size=5))
    'to be or not to be'
    """

    text: str
    title: str = "a text"
    is_single_use = False

    @property
    def size(self) -> int:
        """The number of bytes in UTF-8."""
        return len(self.text.encode())

    def pieces(self, size: int = PIECE) -> Iterator[str]:
        """Iterate over the text in pieces; raise a `TextError` if it is empty."""
        if not self.text:
            raise _empty_error(self.title)
        starts = range(0, len(self.text), size)
        return split_text((self.text[start : start + size] for start in starts), size)


@dataclass(frozen=True)
class FileSource:
    """Concatenated files, with a line break after a file that does not end with one.

    A byte-order mark at the start of a file is removed; line endings are unchanged.

    Args:
        paths: files, pipes, or `-` for standard input.
    """

    paths: tuple[str, ...]

    @property
    def title(self) -> str:
        """The path of a single file, "standard input", or the number of files."""
        if len(self.paths) > 1:
            return f"{len(self.paths):,} files"
        return "standard input" if self.paths[0] == STANDARD_INPUT else self.paths[0]

    @property
    def size(self) -> int | None:
        """The total size in bytes; None if a file is not a regular file."""
        return None if self.is_single_use else sum(_status(path).st_size for path in self.paths)

    @property
    def is_single_use(self) -> bool:
        """Whether the text can be read only once: from standard input or a pipe."""
        return any(
            path == STANDARD_INPUT or not stat.S_ISREG(_status(path).st_mode) for path in self.paths
        )

    def pieces(self, size: int = PIECE) -> Iterator[str]:
        """Iterate over the text in pieces of at most `size` characters.

        Raises:
            TextError: the text is empty, not UTF-8, binary or unreadable.
        """
        is_empty = True
        for piece in split_text(self._blocks(), size):
            is_empty = False
            yield piece
        if is_empty:
            raise _empty_error(self.title)

    def _blocks(self) -> Iterator[str]:
        end = "\n"
        for path in self.paths:
            between = "" if end in "\r\n" else "\n"
            for block in _decode(path):
                yield between + block
                between, end = "", block[-1]


Source: TypeAlias = StringSource | FileSource


def open_source(names: Sequence[str | Path] = (), include: str = "*") -> Source:
    """Open a text from file names.

    Args:
        names: files, folders (all files below them, sorted, without hidden ones), or `-` for
            standard input; an empty list means the Python language reference.
        include: a pattern for the files of folders, such as `*.txt`. A pattern with `/`, such as
            `en/*.txt`, is matched against the path below the folder. With `*`, images and other
            binary files are skipped with a `SkippedFilesWarning`.

    Raises:
        TextError: a path does not exist, a folder has no matching file, or `-` is passed twice.

    >>> open_source().title
    "The Python language reference (the topics of Python's own help)"
    """
    if not names:
        return StringSource(python_reference(), TITLE)
    paths = [path for name in names for path in _files(str(name), include)]
    if paths.count(STANDARD_INPUT) > 1:
        raise TextError(
            "standard input (-) twice", expected="at most one -", remedy="remove the others"
        )
    return FileSource(tuple(paths))


def text_files(names: Sequence[str | Path], include: str = "*") -> list[str]:
    """Return the paths of the files that `open_source` would read, without duplicates.

    Raises:
        TextError: a path does not exist or can be read only once, or a folder has no matching file.
    """
    paths = list(dict.fromkeys(path for name in names for path in _files(str(name), include)))
    if single_use := [path for path in paths if FileSource((path,)).is_single_use]:
        raise TextError(
            f"{FileSource((single_use[0],)).title} can be read only once",
            expected="files and folders, which can be read again",
            cause="standard input, or a pipe",
        )
    return paths


def _files(name: str, include: str) -> list[str]:
    if name == STANDARD_INPUT or not stat.S_ISDIR(_status(name).st_mode):
        return [name]
    with _os_errors(name):
        files = [str(Path(name, path)) for path in sorted(_matching_files(Path(name), include))]
    binary = [file for file in files if include == "*" and _is_binary(file)]
    files = [file for file in files if file not in set(binary)]
    if not files:
        raise TextError(
            f"the folder {name} has no text",
            expected=f"files that match {include}" if include != "*" else "files",
            cause="hidden files are skipped, and binary files unless a pattern selects them",
            remedy="check the path and the pattern",
        )
    if binary:
        examples = ", ".join(Path(path).name for path in binary[:3])
        remainder = f" and {len(binary) - 3:,} more" if binary[3:] else ""
        message = (
            f"skipped binary files in {name}: {examples}{remainder}; "
            "--include, such as --include '*.txt', selects files"
        )
        warnings.warn(message, SkippedFilesWarning, stacklevel=3)
    return files


def _is_binary(path: str) -> bool:
    """Return whether a file seems to be binary; empty and UTF-16 files count as text."""
    with _open(path) as file, _os_errors(path):
        beginning = file.read(1 << 13)
    return beginning.startswith(BINARY) or (b"\0" in beginning and not beginning.startswith(UTF_16))


def _matching_files(folder: Path, include: str) -> Iterator[Path]:
    """Yield the matching regular files below a folder, relative to it."""

    def raise_error(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(root, name).relative_to(folder)
            matches = fnmatch(path.as_posix() if "/" in include else name, include)
            if matches and not name.startswith(".") and Path(root, name).is_file():
                yield path


def _decode(path: str) -> Iterator[str]:
    """Yield the text of a file in non-empty blocks, without a byte-order mark."""
    decoder, offset, block = codecs.getincrementaldecoder("utf-8-sig")(), 0, b"-"
    with _open(path) as file:
        while block:
            with _os_errors(path):
                block = file.read(_BLOCK)
            if b"\0" in block:
                cause = "a binary file, or a text in UTF-16"
                raise _not_text_error(path, "a zero byte", offset + block.index(b"\0"), cause)
            offset += len(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                byte = f"the byte 0x{error.object[error.start]:02x}"
                cause = "another encoding, such as Latin-1, or a truncated file"
                position = offset - len(error.object) + error.start  # error.object ends at `offset`
                raise _not_text_error(path, byte, position, cause) from None
            if text:
                yield text


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with _os_errors(path):
        file = open(path, "rb")  # noqa: SIM115
    with file:
        yield file


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TextError(
            f"cannot read {path}: {error.strerror or error}",
            expected="a file, a folder, or - for standard input",
            remedy="check the path and its permissions",
        ) from error


def _status(path: str) -> os.stat_result:
    with _os_errors(path):
        return os.stat(path)


def _empty_error(title: str) -> TextError:
    return TextError(
        f"{title} is empty", expected="some text", remedy="pass a file that is not empty"
    )


def _not_text_error(path: str, byte: str, position: int, cause: str) -> TextError:
    return TextError(
        f"{path} has {byte} at position {position:,}, counted in bytes",
        expected="a text in UTF-8",
        cause=cause,
        remedy="convert it with `iconv -t UTF-8`, or exclude it (in a folder, by a pattern such as "
        "*.txt)",
    )


def split_text(blocks: Iterable[str], size: int) -> Iterator[str]:
    """Split a text into pieces of at most `size` characters, between words if possible.

    Args:
        blocks: the text, in parts of any size.
        size: the maximum number of characters of a piece.

    Returns:
        pieces that end after a letter or digit, before white space or punctuation; a piece without
        such a position ends after `size` characters.

    >>> list(split_text(["one two, thr", "ee fourteen"], size=11))
    ['one two', ', three', ' fourteen']
    """
    rest = ""
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start > size:
            match = _UP_TO_LAST_SPLIT.match(rest, start, start + size + 1)  # + 1 for the look-ahead
            end = match.end() if match else start + size
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest
