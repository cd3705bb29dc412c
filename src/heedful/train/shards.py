"""Tensors of which each process may hold some rows only (torch's DTensor, as FSDP2 makes them).

Here is all that knows of it: any other tensor is its own only part, and comes back as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.processes import Processes
from heedful.train.exchange import joined


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds a part of it only."""
    return hasattr(tensor, "full_tensor")  # of a DTensor, without importing what it is


def own(tensor: Tensor) -> Tensor:
    """The rows that this process holds, in the tensor's own memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """All of it; every process must ask, as each gives its rows."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gathered(rows: list[Tensor], like: list[Tensor], here: Processes) -> list[Tensor]:
    """All of tensors of which each process has the rows that it holds of some others."""
    if not any(map(is_sharded, like)):
        return rows
    return joined(rows, [len(tensor) for tensor in like], here)


def first_row(tensor: Tensor) -> int:
    """Where the rows that this process holds begin; FSDP2 cuts as `torch.chunk` does."""
    if not is_sharded(tensor):
        return 0
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    each = -(-tensor.shape[0] // mesh.size())
    return min(mesh.get_local_rank() * each, tensor.shape[0])


def held(tensor: Tensor, start: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows from `start` on those that this process holds, and their part of some values."""
    rows, first = own(tensor), start - first_row(tensor)
    low, high = max(0, first), max(0, min(len(rows), first + len(values)))
    return rows[low:high], values[low - first : max(low, high) - first]


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Write values of its whole shape, or cut as it is, into a tensor: the rows that are held."""
    if is_sharded(tensor):
        tensor, values = (
            (own(tensor), own(values)) if is_sharded(values) else held(tensor, 0, values)
        )
    tensor.copy_(values)
