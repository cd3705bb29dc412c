"""Files that are whole or not there: written under a random name beside, flushed, then renamed.

A reader never sees half a file, and a failure leaves what was saved before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from heedful.errors import RunError, SaveError

UNFINISHED = f".{'[0-9a-f]' * 16}.part"  # what a killed process may leave beside a file


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open file; what is written there replaces `path` whole, or not at all.

    Raises:
        SaveError: the disk is full, the directory is read-only or missing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    with saving(path), beside(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if os.name == "nt":  # which renames no open file
            file.close()
        os.replace(file.name, path)
        flush(path.parent)


@contextmanager
def beside(path: Path) -> Iterator[BinaryIO]:
    """A new file in the directory of `path`, which is removed at the end. Raises `OSError`."""
    file = open(path.parent / f".{os.urandom(8).hex()}.part", "x+b")  # noqa: SIM115
    try:
        with file:
            yield file
    finally:
        with suppress(OSError):  # it was renamed; or the directory is gone: the first error says so
            os.unlink(file.name)


def check_no_links(paths: Iterable[Path]) -> None:
    """Refuse links where a run has its own files: what they lead to would be written or removed.

    Raises:
        SaveError: one of the paths is a link.
    """
    for path in paths:
        if path.is_symlink():
            raise SaveError(
                f"{path} is a link to {os.readlink(path)}",
                expected="a run whose own files and directories are no links",
                cause="a run that somebody else made, or moved in part",
                remedy="remove the link, or put a copy of what it leads to in its place",
            )


def check_free(path: Path, overwrite: bool = False) -> None:
    """Refuse to write over what is there, unless that was asked for.

    Raises:
        SaveError: something is there.
    """
    if path.exists() and not overwrite:
        raise SaveError(
            f"{path} is there already",
            expected="a name that is free",
            remedy="choose another, or replace it with --overwrite",
        )


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a path is written, or removed, into a `SaveError`."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(
            f"cannot write {path}: {error.strerror or error}",
            remedy="check the path and the space on its disk; what was saved before is still there",
        ) from error


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Refuse a second process that would write into the same directory at the same time.

    The lock is the operating system's, and goes with the process, however that ends.

    Raises:
        SaveError: another process has it.
    """
    from filelock import FileLock, Timeout

    make_directory(directory)
    path = directory / "lock"
    lock = FileLock(path, timeout=0)
    with saving(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise SaveError(
                f"{directory} is being written by another process",
                expected="one training at a time in a directory",
                remedy="wait for it, stop it, or use another directory",
            ) from error
    try:
        yield
    finally:
        lock.release()


def make_directory(path: Path) -> None:
    """Make a directory and those above it; a `SaveError` where that cannot be."""
    with saving(path):
        path.mkdir(parents=True, exist_ok=True)


def flush(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    if os.name == "nt":  # where a directory has no descriptor
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damaged(path: Path, error: Exception, remedy: str = "restore it, or train again") -> RunError:
    """The error for a file that cannot be read."""
    return RunError(
        f"cannot read {path}: {error}",
        cause="a damaged or truncated file, or one of another kind",
        remedy=remedy,
    )
