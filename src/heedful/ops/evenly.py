"""Some of many rows, evenly chosen: where all would take too long, and the first would not do."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def evenly(size: int, count: int) -> Tensor:
    """At most `count` of the first `size` whole numbers, evenly spread, both ends among them.

    They are on the CPU and are whole numbers throughout, whatever type and device the process has
    made its default: in bfloat16 the last of 260 rows would be row 260.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return torch.tensor(_chosen(size, count), dtype=torch.int64, device="cpu")


# numbers and no tensor, which would be one of inference mode for good where that asked first
@functools.lru_cache(maxsize=64)
def _chosen(size: int, count: int) -> tuple[int, ...]:
    count = max(0, min(size, count))
    return tuple(step * (size - 1) // max(1, count - 1) for step in range(count))
