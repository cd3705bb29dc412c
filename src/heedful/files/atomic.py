"""Atomic file writes: a temporary file beside the final one is flushed, then renamed.

A reader never sees a partial file, and a failed write leaves the earlier file intact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from heedful.errors import RunError, SaveError

UNFINISHED = f".{'[0-9a-f]' * 16}.part"  # pattern of temporary files that a killed process leaves


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the context ends without an error.

    Raises:
        SaveError: the disk is full, or the directory is read-only or missing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    with save_errors(path), temporary_file(path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if os.name == "nt":  # Windows cannot rename an open file
            file.close()
        os.replace(file.name, path)
        flush_directory(path.parent)


@contextmanager
def temporary_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file in the directory of `path`, and remove it at the end; may raise `OSError`."""
    file = open(path.parent / f".{os.urandom(8).hex()}.part", "x+b")  # noqa: SIM115
    try:
        with file:
            yield file
    finally:
        with suppress(OSError):  # the file was renamed, or its directory is gone
            os.unlink(file.name)


def check_no_links(paths: Iterable[Path]) -> None:
    """Raise an error for symbolic links in a run: writing would change or remove their targets.

    Raises:
        SaveError: one of the paths is a symbolic link.
    """
    for path in paths:
        if path.is_symlink():
            raise SaveError(
                f"{path} is a link to {os.readlink(path)}",
                expected="a run without symbolic links",
                cause="a run that somebody else created, or moved in part",
                remedy="remove the link, or replace it with a copy of its target",
            )


def check_free(path: Path, overwrite: bool = False) -> None:
    """Raise an error if a path exists, unless `overwrite` is true.

    Raises:
        SaveError: the path exists.
    """
    if path.exists() and not overwrite:
        raise SaveError(
            f"{path} already exists",
            expected="a path that does not exist",
            remedy="choose another path, or replace this one with --overwrite",
        )


@contextmanager
def save_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` raised while writing or removing a path into a `SaveError`."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(
            f"cannot write {path}: {error.strerror or error}",
            remedy="check the path and the space on its disk; files saved earlier are intact",
        ) from error


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Lock a directory, so that only one process writes into it.

    The operating system releases the lock when the process ends, even if it is killed.

    Raises:
        SaveError: another process holds the lock.
    """
    from filelock import FileLock, Timeout

    make_directory(directory)
    path = directory / "lock"
    lock = FileLock(path, timeout=0)
    with save_errors(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise SaveError(
                f"{directory} is being written by another process",
                expected="one training run at a time in a directory",
                remedy="wait for that process, stop it, or use another directory",
            ) from error
    try:
        yield
    finally:
        lock.release()


def make_directory(path: Path) -> None:
    """Create a directory and its parents; raise a `SaveError` if that fails."""
    with save_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def flush_directory(path: Path) -> None:
    """Flush a directory's entries to disk, so that a rename survives a power failure."""
    if os.name == "nt":  # Windows cannot open directories
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_error(
    path: Path, error: Exception, remedy: str = "restore it, or train again"
) -> RunError:
    """Return the error for a file that cannot be read."""
    return RunError(
        f"cannot read {path}: {error}",
        cause="a damaged or truncated file, or a file in another format",
        remedy=remedy,
    )
