"""CRC-32 checksums, stored in the files that they protect.

A checksum inside the file survives renaming and copying. CRC-32 detects any single damaged byte,
and misses other damage once in four billion cases. It runs at about a gigabyte per second.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 20  # bytes; fits into the processor's cache
DAMAGE_CAUSE = "a failing disk, or an incomplete copy"


def digits(checksum: int) -> str:
    """Format a CRC-32 as eight hexadecimal digits."""
    return f"{checksum:08x}"


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def checksum_of(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's bytes."""
    return zlib.crc32(bytes_of(tensor))


def checksum_of_file(path: Path, end: int | None = None) -> int:
    """Compute the CRC-32 of a file, or of its first `end` bytes."""
    checksum, remaining = 0, path.stat().st_size if end is None else end
    with path.open("rb") as file:
        while block := file.read(min(CHUNK, remaining)):
            checksum = zlib.crc32(block, checksum)
            remaining -= len(block)
    return checksum


class Checksums:
    """The stored checksums of a file's tensors, each compared at the first use of its tensor.

    So opening a large file does not read all of it.

    Args:
        path: the path of the file.
        tensors: the tensors by name.
        stored: the stored checksums by name; a tensor without a checksum is not compared.
        remedy: the advice in the error for a damaged tensor.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, Tensor], stored: Mapping[str, Any], remedy: str
    ) -> None:
        self.path, self.tensors, self.stored = path, tensors, stored
        self.pending, self.remedy = dict(stored), remedy
        self._file, self._state = path.absolute(), path.stat()

    def check(self, names: Iterable[str], contents: bool = True) -> None:
        """Check the file's size, then compare tensors with their checksums, unless done before.

        Reading a tensor that is mapped from a truncated file ends the process with SIGBUS. So call
        this before each use of a tensor; a file that is truncated during the use still does so.

        Raises:
            RunError: the file was truncated, or a tensor differs from its checksum.
        """
        self._check_size()
        for name in names if contents else ():
            if name in self.pending and checksum_of(self.tensors[name]) != self.pending[name]:
                raise RunError(
                    f"{self.path} is damaged: {name} is not what was written",
                    cause=DAMAGE_CAUSE,
                    remedy=self.remedy,
                )
            self.pending.pop(name, None)

    def _check_size(self) -> None:
        with suppress(OSError):  # a deleted or replaced file keeps its contents while it is mapped
            state, size = self._file.stat(), self._state.st_size
            if not os.path.samestat(state, self._state):
                return
            if state.st_size < size:
                raise RunError(
                    f"{self.path} was truncated from {size:,} to {state.st_size:,} bytes",
                    cause="another program that overwrites the file",
                    remedy=self.remedy,
                )
            if state.st_mtime_ns != self._state.st_mtime_ns:  # written to: compare everything again
                self.pending, self._state = dict(self.stored), state
