"""The token file: a memory-mapped `.npy` array of ids, followed by a checksum.

NumPy reads the array and ignores the bytes after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from heedful.errors import ArgumentError, RunError
from heedful.files import check_regular
from heedful.files.checksums import checksum_of_file, digits

_CHUNK = 1 << 20  # ids
MARK = "\nheedful crc32 "  # after the array, before the eight digits of the checksum
TAIL = len(MARK) + len("00000000\n")


class TokenFile:
    """The memory-mapped ids of a text, split into `train` and, at its end, `validation`.

    Args:
        path: the `.npy` file that `prepare` wrote.
        validation: the fraction of ids at the end that is held out for validation.

    Raises:
        RunError: the file is missing or damaged.
        ArgumentError: the fraction is not in [0, 1), or leaves no id to train on.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tokens.npy"
    >>> with path.open("w+b") as file:
    ...     count = write_ids(file, [np.arange(20)], id_type(300))
    >>> tokens = TokenFile(path)
    >>> count, len(tokens), tokens.train[:3].tolist(), tokens.validation.tolist()
    (20, 20, [0, 1, 2], [18, 19])
    """

    def __init__(self, path: str | Path, validation: float = 0.1) -> None:
        self.path = Path(path)
        self.ids, self.checksum = _open_ids(self.path)
        share = 1 - validation if 0 <= validation < 1 else 0.0
        split = int(len(self.ids) * share)
        if not split:
            raise ArgumentError(
                f"a validation share of {validation} of {len(self.ids):,} tokens",
                expected="a share that leaves at least one token for training",
                remedy="pass more text, or a smaller share",
            )
        self.train, self.validation = self.ids[:split], self.ids[split:]

    def __len__(self) -> int:
        """The number of ids."""
        return len(self.ids)


def id_type(size: int) -> np.dtype:
    """Return uint16 if it can represent all ids below `size`, else uint32."""
    return np.dtype(np.uint16 if size <= 1 << 16 else np.uint32)


def write_ids(file: BinaryIO, chunks: Iterable[np.ndarray], dtype: np.dtype) -> int:
    """Write chunks of ids as one `.npy` array, then its checksum; return the number of ids."""
    count = 0
    _write_header(file, 0, dtype)
    for chunk in chunks:
        file.write(chunk.astype(dtype, copy=False).data)
        count += len(chunk)
    file.seek(0)
    _write_header(file, count, dtype)  # as long as before: numpy reserves space for the digits
    file.flush()
    checksum = digits(checksum_of_file(Path(file.name)))
    file.seek(0, os.SEEK_END)
    file.write(f"{MARK}{checksum}\n".encode())
    return count


def distinct_ids(ids: np.ndarray) -> np.ndarray:
    """Return the distinct ids in ascending order, (U,) int64; read one chunk at a time."""
    occurs = np.zeros(0, bool)
    for chunk in chunks_of(ids):
        largest = int(chunk.max())
        if largest >= len(occurs):
            occurs = np.pad(occurs, (0, largest + 1 - len(occurs)))
        occurs[chunk] = True
    return np.flatnonzero(occurs)


def chunks_of(ids: np.ndarray) -> Iterable[np.ndarray]:
    """Yield the ids in chunks of a fixed size."""
    return (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))


def _write_header(file: BinaryIO, count: int, dtype: np.dtype) -> None:
    about = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, about)


def _open_ids(path: Path) -> tuple[np.ndarray, str]:
    """Return the ids of a token file, and the checksum stored in it."""
    try:
        check_regular(path)
        ids = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise RunError(
            f"no token file {path}",
            cause="a wrong directory, or training that never started",
            remedy="check the path, or train again",
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise _damage_error(path, str(error)) from error
    if not isinstance(ids, np.memmap) or ids.ndim != 1 or ids.dtype.kind != "u" or not len(ids):
        raise _damage_error(path, "it is not an array of ids")
    end = ids.offset + ids.nbytes
    with path.open("rb") as file:
        file.seek(end)
        tail = file.read(TAIL + 1)
    checksum = digits(checksum_of_file(path, end))
    if tail != f"{MARK}{checksum}\n".encode():
        raise _damage_error(path, "its checksum differs")
    return ids, checksum


def _damage_error(path: Path, reason: str) -> RunError:
    return RunError(
        f"cannot read the tokens in {path}: {reason}",
        cause="a damaged or truncated file",
        remedy="copy it again, or train again",
    )
