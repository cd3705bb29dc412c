"""Where a text comes from: files, folders, standard input, a string, or Python itself.

Texts are read as a stream, and checked: UTF-8, and no binary file.
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
PIECE = 1 << 18  # characters: what a tokenizer makes of a piece takes up to 100 times as much
_BLOCK = 1 << 18  # bytes

# How files begin that are no texts, and may have no zero byte near their beginning
BINARY = (b"%PDF-", b"\x1f\x8b", b"PK\x03\x04", b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BZh")
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # texts, which are told of as such

# The patterns of GPT-2, cl100k_base and o200k_base, which split a text into words before bytes are
# paired, never join a letter or a digit with the white space or the sentence mark after it, and
# look at nothing before a word. So the tokens of pieces cut there are the tokens of the whole text
_UP_TO_LAST_SAFE_CUT = re.compile(r".*[^\W_](?=[\s,.;:!?、。，．：；！？])", re.DOTALL)


class LeftOutWarning(UserWarning):
    """Files of a folder that are no texts are not read."""


@dataclass(frozen=True)
class StringSource:
    """A text that is there already, in pieces that are cut where no tokenizer joins them.

    title: what to call it. size: its bytes. once: whether it can be read only once.

    >>> "".join(StringSource("to be or not to be").pieces(size=5))
    'to be or not to be'
    """

    text: str
    title: str = "a text"
    once = False

    @property
    def size(self) -> int:
        """Its bytes as UTF-8."""
        return len(self.text.encode())

    def pieces(self, size: int = PIECE) -> Iterator[str]:
        """The text in pieces; a `TextError` where it is empty."""
        if not self.text:
            raise _empty(self.title)
        return cut((self.text[at : at + size] for at in range(0, len(self.text), size)), size)


@dataclass(frozen=True)
class FileSource:
    """Files one after another, with a line break between where one does not end with it.

    A byte-order mark at the start of a file is left out; line endings stay as they are.

    Args:
        paths: files, pipes, or `-` for standard input.
    """

    paths: tuple[str, ...]

    @property
    def title(self) -> str:
        """The path, or how many files there are."""
        if len(self.paths) > 1:
            return f"{len(self.paths):,} files"
        return "standard input" if self.paths[0] == STANDARD_INPUT else self.paths[0]

    @property
    def size(self) -> int | None:
        """The files' bytes; None where one is not a regular file."""
        return None if self.once else sum(_status(path).st_size for path in self.paths)

    @property
    def once(self) -> bool:
        """Whether one of them is standard input or a pipe."""
        return any(
            path == STANDARD_INPUT or not stat.S_ISREG(_status(path).st_mode) for path in self.paths
        )

    def pieces(self, size: int = PIECE) -> Iterator[str]:
        """The text in pieces of at most `size` characters, each file checked as it is read.

        Raises:
            TextError: it is empty, not UTF-8, binary or unreadable.
        """
        some = False
        for piece in cut(self._blocks(), size):
            some = True
            yield piece
        if not some:
            raise _empty(self.title)

    def _blocks(self) -> Iterator[str]:
        end = "\n"
        for path in self.paths:
            between = "" if end in "\r\n" else "\n"
            for block in _decoded(path):
                yield between + block
                between, end = "", block[-1]


Source: TypeAlias = StringSource | FileSource


def open_source(names: Sequence[str | Path] = (), include: str = "*") -> Source:
    """The text that a command names.

    Args:
        names: files, folders (all files below them, sorted, hidden ones left out), `-` for
            standard input; none means the Python language reference.
        include: which files of a folder, such as `*.txt`; with a `/`, such as `en/*.txt`, it is
            compared with the path below the folder. With `*`, pictures and other binary files are
            left out, of which a `LeftOutWarning` tells.

    Raises:
        TextError: a name is missing, a folder has no such file, or standard input is named twice.

    >>> open_source().title
    "The Python language reference (the topics of Python's own help)"
    """
    if not names:
        return StringSource(python_reference(), TITLE)
    paths = [path for name in names for path in _files(str(name), include)]
    if paths.count(STANDARD_INPUT) > 1:
        raise TextError(
            "standard input (-) named twice", expected="it once", remedy="leave out one of the two"
        )
    return FileSource(tuple(paths))


def text_files(names: Sequence[str | Path], include: str = "*") -> list[str]:
    """Files and those of folders, each once, as `open_source` finds them.

    Raises:
        TextError: a name is missing, a folder has no such file, or what can be read only once.
    """
    paths = list(dict.fromkeys(path for name in names for path in _files(str(name), include)))
    if once := [path for path in paths if FileSource((path,)).once]:
        raise TextError(
            f"{FileSource((once[0],)).title} among many texts",
            expected="files and folders, which can be read again",
            cause="standard input, or a pipe",
        )
    return paths


def _files(name: str, include: str) -> list[str]:
    if name == STANDARD_INPUT or not stat.S_ISDIR(_status(name).st_mode):
        return [name]
    with _reading(name):
        files = [str(Path(name, path)) for path in sorted(_below(Path(name), include))]
    no_texts = [file for file in files if include == "*" and _is_binary(file)]
    files = [file for file in files if file not in set(no_texts)]
    if not files:
        raise TextError(
            f"the folder {name} has no text",
            expected=f"files that match {include}" if include != "*" else "files",
            cause="hidden files and binary ones are left out",
            remedy="check the path and the pattern",
        )
    if no_texts:
        some = ", ".join(Path(path).name for path in no_texts[:3])
        more = f" and {len(no_texts) - 3:,} more" if no_texts[3:] else ""
        message = (
            f"left out of {name}, as no text: {some}{more}; "
            "--include, such as --include '*.txt', chooses what is read"
        )
        warnings.warn(message, LeftOutWarning, stacklevel=3)
    return files


def _is_binary(path: str) -> bool:
    """Whether a file is no text, by how it begins; one that is empty or in another code is."""
    with _opened(path) as file, _reading(path):
        begin = file.read(1 << 13)
    return begin.startswith(BINARY) or (b"\0" in begin and not begin.startswith(UTF_16))


def _below(folder: Path, include: str) -> Iterator[Path]:
    """The regular files below a folder that match, relative to it."""

    def stop(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(root, name).relative_to(folder)
            matches = fnmatch(path.as_posix() if "/" in include else name, include)
            if matches and not name.startswith(".") and Path(root, name).is_file():
                yield path


def _decoded(path: str) -> Iterator[str]:
    """The text of a file in blocks that are not empty, without a byte-order mark."""
    read = 0

    def blocks(file: BinaryIO) -> Iterator[bytes]:
        nonlocal read
        while True:
            with _reading(path):
                block = file.read(_BLOCK)
            if not block:
                return
            if b"\0" in block:
                cause = "a binary file, or a text in UTF-16"
                raise _no_text(path, "a zero byte", read + block.index(b"\0"), cause)
            read += len(block)
            yield block

    with _opened(path) as file:
        try:
            yield from codecs.iterdecode(blocks(file), "utf-8-sig")
        except UnicodeDecodeError as error:
            byte = f"the byte 0x{error.object[error.start]:02x}"
            cause = "another encoding, such as Latin-1, or a file cut in the middle"
            position = read - len(error.object) + error.start  # the object ends where it was read
            raise _no_text(path, byte, position, cause) from None


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with _reading(path):
        file = open(path, "rb")  # noqa: SIM115
    with file:
        yield file


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TextError(
            f"cannot read {path}: {error.strerror or error}",
            expected="a file, a folder, or - for standard input",
            remedy="check the path and its permissions",
        ) from error


def _status(path: str) -> os.stat_result:
    with _reading(path):
        return os.stat(path)


def _empty(title: str) -> TextError:
    return TextError(
        f"{title} is empty", expected="some text", remedy="name a file that has text in it"
    )


def _no_text(path: str, byte: str, position: int, cause: str) -> TextError:
    return TextError(
        f"{path} has {byte} at position {position:,}, counted in bytes",
        expected="a text in UTF-8",
        cause=cause,
        remedy="convert it with `iconv -t UTF-8`, or leave it out (of a folder, with a pattern "
        "such as *.txt)",
    )


def cut(blocks: Iterable[str], size: int) -> Iterator[str]:
    """The same text in pieces of at most `size` characters.

    Args:
        blocks: the text, in parts of any size.
        size: the most characters of a piece.

    Returns:
        pieces that end after a letter or a digit and before white space or a sentence mark;
        where `size` characters have no such place, a piece is cut at their end.

    >>> list(cut(["one two, thr", "ee fourteen"], size=11))
    ['one two', ', three', ' fourteen']
    """
    rest = ""
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start > size:
            end = _end(rest, start, start + size)
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _end(text: str, start: int, limit: int) -> int:
    found = _UP_TO_LAST_SAFE_CUT.match(text, start, limit + 1)  # + 1: what comes after the cut
    return found.end() if found else limit
