"""Tensors that are cut among processes, and tensors that processes make together.

FSDP2 gives each process some rows of every weight (torch's DTensor); any other tensor is whole in
each of them. A process alone has everything, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.processes import Processes


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds a part of it only."""
    return hasattr(tensor, "full_tensor")  # of a DTensor, without importing what it is


def local(tensor: Tensor) -> Tensor:
    """The rows that this process holds, in the tensor's own memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """All of it; every process must call this, as each sends its rows."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def first_row(tensor: Tensor) -> int:
    """The index of the first row that this process holds; FSDP2 cuts as `torch.chunk` does."""
    if not is_sharded(tensor):
        return 0
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    each = -(-tensor.shape[0] // mesh.size())
    return min(mesh.get_local_rank() * each, tensor.shape[0])


def held(tensor: Tensor, start: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows from `start` on those that this process holds, and their part of some values."""
    rows, first = local(tensor), start - first_row(tensor)
    low, high = max(0, first), max(0, min(len(rows), first + len(values)))
    return rows[low:high], values[low - first : max(low, high) - first]


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Write values of its whole shape, or cut as it is, into a tensor: the rows that are held."""
    if is_sharded(tensor):
        tensor, values = (
            (local(tensor), local(values)) if is_sharded(values) else held(tensor, 0, values)
        )
    tensor.copy_(values)


@torch.no_grad()
def clip(parameters: Sequence[Tensor], most: float, here: Processes) -> None:
    """Scale all gradients by one factor, so that the norm of all of them is at most `most`.

    `clip_grad_norm_` sends a message for each cut tensor; here one number is sent.
    """
    if not any(map(is_sharded, parameters)):
        nn.utils.clip_grad_norm_(parameters, most)
        return
    gradients = [local(tensor.grad) for tensor in parameters if tensor.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    [squares] = here.sums([float(norm) ** 2], norm.device)
    factor = norm.new_tensor(most / (math.sqrt(squares) + 1e-6)).clamp(max=1.0)  # NaN stays NaN
    torch._foreach_mul_(gradients, factor)


def gathered(rows: list[Tensor], like: list[Tensor], here: Processes) -> list[Tensor]:
    """Whole tensors, from the rows that each process holds where those in `like` are cut."""
    if not any(map(is_sharded, like)):
        return rows
    return joined(rows, [len(tensor) for tensor in like], here)


def shared_out(
    function: Callable[[Tensor], Tensor], stacks: Iterable[Tensor], here: Processes
) -> Iterator[Tensor]:
    """A function of stacks of tensors, each process computing its share of every stack.

    Args:
        function: (b, …) to (b, …).
        stacks: (B, …) each.
        here: this process.
    """
    if here.is_alone:
        yield from map(function, stacks)
        return
    parts, lengths = [], []
    for stack in stacks:
        each = -(-len(stack) // here.size)
        mine = stack[each * here.rank : each * (here.rank + 1)]
        parts.append(function(mine) if len(mine) else mine.clone())
        lengths.append(len(stack))
        del stack, mine  # no two stacks wait in memory, and none while the message is made
    yield from joined(parts, lengths, here)


def joined(rows: Sequence[Tensor], lengths: Sequence[int], here: Processes) -> list[Tensor]:
    """Whole tensors from their rows, which are cut among the processes as `torch.chunk` cuts.

    One message has all of them: who waits for the others waits once. In it, the rows of processes
    that have fewer are padded.

    Args:
        rows: those of each tensor that this process has, (r, …); the last ones may have none.
        lengths: the rows of each that all processes have together.
        here: this process.
    """
    sizes = [
        -(-length // here.size) * math.prod(part.shape[1:])
        for length, part in zip(lengths, rows, strict=True)
    ]
    mine = rows[0].new_zeros(sum(sizes))
    for place, part in zip(mine.split(sizes), rows, strict=True):
        place[: part.numel()] = part.flatten()
    message = mine.new_empty(here.size * len(mine))
    dist.all_gather_single(message, mine)
    by_tensor = message.view(here.size, -1).split(sizes, dim=1)
    return [
        of_all.reshape(-1, *part.shape[1:])[:length]
        for of_all, part, length in zip(by_tensor, rows, lengths, strict=True)
    ]
