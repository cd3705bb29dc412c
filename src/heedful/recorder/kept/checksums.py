"""Compares checksums of a file's tensors when somebody first asks for one of them.

So a file opens at once, a tensor that nobody asks for is never read, and one that a disk or a copy
has damaged raises before its numbers are shown.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.errors import RunError


def checksum_of(tensor: Tensor) -> int:
    """The CRC-32 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


class Checksums:
    """The checksums that the tensors of a file had when it was written.

    Args:
        path: the path of the file.
        tensors: its tensors by name, as they are now.
        written: their checksums by name; a tensor without one is not compared.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], written: Mapping[str, Any]):
        self.path, self.tensors, self.left = path, tensors, dict(written)

    def check(self, names: Iterable[str]) -> None:
        """Compare these tensors, except those that were compared before.

        Raises:
            RunError: a tensor is not what was written.
        """
        for name in names:
            if name in self.left and checksum_of(self.tensors[name]) != self.left[name]:
                raise RunError(
                    f"{self.path} is damaged: {name} is not what was written",
                    cause="a disk, or a copy of the file, that failed",
                    remedy="copy it again, or record again",
                )
            self.left.pop(name, None)
