"""Files that are whole or not there: written beside, flushed, then renamed.

A reader never sees half a file, and a failure leaves what was saved before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import RunError, SaveError

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
}
# In which nothing was saved before
WRONG_PLACES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path; what was written there replaces `path` whole, or not at all.

    Raises:
        SaveError: the disk is full, the directory is read-only or missing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with replacing(path) as temporary:
    ...     _ = temporary.write_text("1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    temporary = path.with_name(f".{path.name}.part")  # one name, so a killed run leaves one at most
    try:
        with saving(path):
            temporary.touch()  # a place that cannot be written is told before the work is done
            yield temporary
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
    finally:
        with _ignoring_os_errors():
            temporary.unlink(missing_ok=True)


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
    """Wait until a file, or the names in a directory, are on the disk."""
    if os.name == "nt":  # where a directory has no descriptor, and a read-only one no flush
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _ignoring_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError:  # the directory itself is gone or read-only: the first error says so
        return


def damaged(path: Path, error: Exception, remedy: str = "restore it, or train again") -> RunError:
    """The error for a file that cannot be read."""
    return RunError(
        f"cannot read {path}: {error}",
        cause="a damaged or truncated file, or one of another kind",
        remedy=remedy,
    )
