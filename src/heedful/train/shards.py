"""Tensors of which each process may hold some rows only (torch's DTensor, as FSDP2 makes them).

Here is all that knows of it: any other tensor is its own only part, and comes back as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

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


@torch.no_grad()
def clip(parameters: Sequence[Tensor], most: float, here: Processes) -> None:
    """Scale all gradients by one factor, so that the norm of all of them is at most `most`.

    As `clip_grad_norm_` does it, which for tensors that are cut sends a message for each step of
    the sum, and goes through Python for each tensor; here one number is sent.
    """
    if not any(map(is_sharded, parameters)):
        nn.utils.clip_grad_norm_(parameters, most)
        return
    gradients = [own(one.grad) for one in parameters if one.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    [squares] = here.sums([float(norm) ** 2], norm.device)
    factor = norm.new_tensor(most / (math.sqrt(squares) + 1e-6)).clamp(max=1.0)  # NaN stays NaN
    torch._foreach_mul_(gradients, factor)
