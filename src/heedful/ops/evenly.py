"""Some of many rows, evenly chosen: where all would take too long, and the first would not do."""

from __future__ import annotations

import torch
from torch import Tensor


def evenly(size: int, count: int) -> Tensor:
    """At most `count` of the first `size` whole numbers, evenly spread, both ends among them.

    They are on the CPU and are whole numbers throughout, whatever type and device the process has
    made its default: in bfloat16 the last of 260 rows would be row 260.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    count = max(0, min(size, count))
    steps = torch.arange(count, dtype=torch.int64, device="cpu")
    return steps * (size - 1) // max(1, count - 1)
