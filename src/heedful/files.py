"""Files that are whole or not there: written beside, flushed, then renamed.

A reader never sees half a file, and a failure leaves what was saved before.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from heedful.errors import RunError, SaveError

if TYPE_CHECKING:
    from torch import Tensor


CAUSES = {
    errno.ENOSPC: "a full disk",
    errno.EDQUOT: "a quota that is used up",
    errno.EROFS: "a read-only disk",
    errno.EACCES: "a directory that is another user's",
    errno.ENOENT: "there is no directory {directory}",
    errno.ENOTDIR: "a file where a directory was meant",
    errno.EEXIST: "a file where a directory was meant",
    errno.EISDIR: "a directory where a file was meant",
}
# In which nothing was saved before
WRONG_PLACES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
LONGEST_HEADER = 100_000_000  # bytes, as safetensors itself allows
# Where a header says its own checksum, eight hexadecimal digits that count as zeros in it
CHECKSUM = re.compile(rb'"header_crc32":"([0-9a-f]{8})"')


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
            _flush(temporary)
            os.replace(temporary, path)
            _flush(path.parent)
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


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; a `RunError` where the file is missing or damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"no file {path}",
            expected="a whole directory, made by `heedful train` or in Hugging Face format",
            remedy="check the path; fetch it again, or train again",
        ) from None
    except (ValueError, OSError) as error:
        raise damaged(path, error) from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write named tensors, with a JSON description in the header, as safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        try:
            save_file(
                {name: tensor.detach().contiguous() for name, tensor in tensors.items()},
                temporary,
                metadata={
                    "format": "pt",
                    "heedful": json.dumps(about),
                    "header_crc32": "0" * 8,
                },
            )
            _write_checksum(temporary)
        except SafetensorError as error:  # how its Rust part reports a full disk
            raise OSError(str(error)) from error
        temporary.chmod(0o666 & ~_umask())  # as other files have it; safetensors hides its own


def _write_checksum(path: Path) -> None:
    """Write the checksum of a file's header into its place there."""
    with path.open("r+b") as file:
        header = _header(file)
        file.seek(header.index(b'"header_crc32":"') + len(b'"header_crc32":"'))
        file.write(b"%08x" % zlib.crc32(header))


def is_header_whole(path: Path) -> bool | None:
    """Whether a file's header is what `save_tensors` wrote; None where it has no checksum."""
    with path.open("rb") as file:
        header = _header(file)
    found = CHECKSUM.search(header)
    if found is None:  # another program's, or an older version's
        return None
    zeros = header[: found.start(1)] + b"0" * 8 + header[found.end(1) :]
    return int(found[1], 16) == zlib.crc32(zeros)


def _header(file: BinaryIO) -> bytes:
    """The header of safetensors, with the length before it."""
    length = file.read(8)
    return length + file.read(int.from_bytes(length, "little"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; a `RunError` where it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RunError(
            f"no file {path}",
            cause="training stopped before it was first saved",
            remedy="continue with `heedful train --resume`",
        )
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("heedful", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise damaged(path, error) from error


def description(path: Path) -> dict[str, Any] | None:
    """What `save_tensors` was told about its tensors, whether these are whole or cut.

    Empty where another program wrote the tensors, or the header itself is cut; None where the file
    does not begin as safetensors do.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin = file.read(1)
        if begin != b"{" or length > LONGEST_HEADER:
            return None
        header = begin + file.read(length - 1)
    try:
        about = json.loads(json.loads(header)["__metadata__"]["heedful"])
    except (ValueError, LookupError, TypeError):
        return {}
    return about if isinstance(about, dict) else {}


def _flush(path: Path) -> None:
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
