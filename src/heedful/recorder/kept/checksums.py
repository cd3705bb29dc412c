"""Checksums of a file's tensors, compared when somebody first asks for one of them.

A file opens at once, and a tensor that nobody asks for is never read; one that a disk or a copy has
damaged is told before its numbers are shown.
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
    """CRC-32 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


class Checksums:
    """What the tensors of a file were as they were written.

    Args:
        path: of the file.
        tensors: by name, as they are now.
        written: their checksums; a tensor that has none is not compared.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], written: Mapping[str, Any]):
        self.path, self.tensors, self.left = path, tensors, dict(written)

    def check(self, names: Iterable[str]) -> None:
        """Compare those that were not compared before.

        Raises:
            RunError: a tensor that is not what was written.
        """
        for name in names:
            if name in self.left and checksum_of(self.tensors[name]) != self.left[name]:
                raise RunError(
                    f"{self.path} is damaged: {name} is not what was written",
                    cause="a disk, or a copy of the file, that failed",
                    remedy="copy it again, or record again",
                )
            self.left.pop(name, None)
