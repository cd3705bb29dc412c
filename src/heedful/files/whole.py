"""Files that are whole or not there: written beside, flushed, then renamed.

A reader never sees half a file, and a failure leaves what was saved before. No link is followed:
each file is created under a random name, and a rename replaces a link, not what it leads to.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from heedful.errors import RunError, SaveError

try:
    import fcntl
except ImportError:  # Windows, which removes no file that is open, and so needs no lock
    fcntl = None  # type: ignore[assignment]

CAUSES = {
    errno.ENOSPC: "a full disk",
    errno.EDQUOT: "a quota that is used up",
    errno.EFBIG: "a limit on the size of files (`ulimit -f`)",
    errno.EROFS: "a read-only disk",
    errno.EACCES: "a directory that is another user's",
    errno.ENOENT: "there is no directory {directory}",
    errno.ENOTDIR: "a file where a directory was meant",
    errno.EEXIST: "a file, or a link that leads nowhere, where a directory was meant",
    errno.EISDIR: "a directory where a file was meant",
    errno.ELOOP: "a link where a file was meant",
}
# In which nothing was saved before
WRONG_PLACES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP)


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
        if not fcntl:  # nor does Windows rename an open file
            file.close()
        os.replace(file.name, path)
        flush(path.parent)


@contextmanager
def beside(path: Path) -> Iterator[BinaryIO]:
    """An open file in the directory of `path`, which is removed at the end.

    Those that killed processes left there are removed first. Raises `OSError`.
    """
    for left in path.parent.glob(f".{glob.escape(_short(path))}.{'[0-9a-f]' * 16}.part"):
        _remove_unlocked(left)
    file = _created(path)
    try:
        with file:
            yield file
    finally:
        with suppress(OSError):  # it was renamed; or the directory is gone: the first error says so
            os.unlink(file.name)


def _created(path: Path) -> BinaryIO:
    """A new file, which no link stands for ("x": O_EXCL), locked as long as it is open."""
    while True:
        name = f".{_short(path)}.{os.urandom(8).hex()}.part"
        file = open(path.parent / name, "x+b")  # noqa: SIM115
        if fcntl:
            with suppress(OSError):  # a disk without locks, on which nothing is removed either
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.lexists(file.name):
            return file
        file.close()  # another process removed it before it was locked


def _short(path: Path) -> str:
    """The name of a file, or so much of it that a longer name is still one (255 bytes)."""
    return os.fsencode(path.name)[:220].decode(errors="ignore")


def _remove_unlocked(left: Path) -> None:
    """Remove what a process left that was killed: the lock of one that is alive holds."""
    with suppress(OSError):
        if not fcntl:
            os.unlink(left)
            return
        with open(left, "r+b", opener=_open_no_link) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(left)


def append(path: Path) -> TextIO:
    """Open a file to add lines to, unless it is a link; a `SaveError` where that cannot be."""
    with saving(path):
        return open(path, "a", encoding="utf-8", buffering=1, opener=_open_no_link)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


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
        lost = error.errno in WRONG_PLACES
        raise SaveError(
            f"cannot write {path}: {error.strerror or error}",
            cause=CAUSES.get(error.errno or 0, "").format(directory=path.parent),
            remedy="check the path, or choose another directory"
            if lost
            else "free space or choose another directory; what was saved before is still there",
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
