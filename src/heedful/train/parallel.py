"""What many processes hold of a model, and how they run it: a copy in each, or cut among them.

Each process reads its own sequences of a batch, and the gradients are added up. What wraps the
model is torch's own: `DistributedDataParallel` (Li et al. 2020, arXiv:2006.15704) and
`fully_shard` (FSDP2; Zhao et al. 2023, arXiv:2304.11277), which gives each process some rows of
every weight, as a DTensor. Any other tensor is whole in each of them. A process alone has
everything, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.processes import Processes

T = TypeVar("T")
LEAST = 2**20  # numbers that processes gather from each other at once, 4 MB in float32


class Runner(nn.Module):
    """A module that runs any function of a model, so that torch can wrap all uses of it alike."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *given: Any) -> T:
        """The function, of the model and what else it is given."""
        return function(self.model, *given)


class Passes:
    """One process that has all of the model."""

    is_cut = False  # whether the processes must run the model at the same time, each a part of it

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._runner: Any = Runner(model)

    def training(self, function: Callable[..., T], *given: Any) -> T:
        """A function of the model whose result is differentiated."""
        return self._runner(function, *given)

    def looking(self, function: Callable[..., T], *given: Any) -> T:
        """A function of the model whose result is looked at."""
        with torch.inference_mode():
            return function(self.model, *given)

    def adding(self, is_last: bool) -> AbstractContextManager[None]:
        """Inside, gradients are added to those before; with the last batch, over the processes."""
        return nullcontext()


class Copies(Passes):
    """The model in each process; gradients are averaged as soon as they are there."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._runner = nn.parallel.DistributedDataParallel(
            Runner(model), forward_sync_buffers=False
        )

    def adding(self, is_last: bool) -> AbstractContextManager[None]:
        """Inside, gradients are added to those before; with the last batch, over the processes."""
        return nullcontext() if is_last else self._runner.no_sync()


class Cut(Passes):
    """Rows of every weight in each process; a block is whole while it runs, and no longer.

    Small blocks are gathered together, and a small model as a whole, as a message costs time
    however short it is. What runs last stays whole from its forward pass to its gradient.

    The model's parameters are replaced, so an optimizer must be made after this.
    """

    is_cut = True

    def __init__(self, model: nn.Module, device: torch.device, size: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model)
        mesh = init_device_mesh(device.type, (size,))
        stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
        groups = [group for stack in stacks for group in grouped(stack)]
        for group in groups:  # what runs last, or nearly, has its gradient first: it stays whole
            fully_shard(group, mesh=mesh, reshard_after_forward=group is not groups[-1])
        self._runner = fully_shard(Runner(model), mesh=mesh)
        self._kept: list[Any] = [self._runner, *(group[0] for group in groups[-1:])]

    def looking(self, function: Callable[..., T], *given: Any) -> T:
        """A function of the model whose result is looked at."""
        with torch.no_grad():  # what is gathered in inference mode cannot be trained on later
            found = self._runner(function, *given)
        for part in self._kept:  # else it stays whole until a gradient comes
            part.reshard()
        return found

    def adding(self, is_last: bool) -> AbstractContextManager[None]:
        """Inside, gradients are added to those before; with the last batch, over the processes."""
        self._runner.set_requires_gradient_sync(is_last)
        return nullcontext()


def grouped(stack: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Blocks in their order, in groups of at least `LEAST` numbers, but for the last one.

    Blocks that have fewer together make none: they are gathered with what stands around them.

    >>> [len(group) for group in grouped([nn.Linear(1023, 1024)] * 5)], LEAST
    ([1, 1, 1, 1, 1], 1048576)
    >>> [len(group) for group in grouped([nn.Linear(1023, 512)] * 5)]
    [2, 2, 1]
    >>> grouped([nn.Linear(1023, 512)])
    []
    """
    groups: list[list[nn.Module]] = []
    numbers = LEAST
    for block in stack:
        if numbers >= LEAST:
            groups.append([])
            numbers = 0
        groups[-1].append(block)
        numbers += sum(parameter.numel() for parameter in block.parameters())
    return groups if len(groups) > 1 or numbers >= LEAST else []


def passes_of(model: nn.Module, here: Processes, device: torch.device, cut: bool) -> Passes:
    """How the processes run a model, the same in each of them, on `device` unless it is cut."""
    if here.is_alone:
        return Passes(model)
    return Cut(model, device, here.size) if cut else Copies(model)


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
    """Write values of its whole shape, or cut as it is, into a tensor: the rows held here."""
    if is_sharded(tensor) and not is_sharded(values):
        tensor, values = held(tensor, 0, values)
    local(tensor).copy_(local(values))


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


def shared_out(
    function: Callable[[Tensor], Tensor], stacks: Iterable[Tensor], here: Processes
) -> Iterator[Tensor]:
    """A function (b, …) → (b, …) of stacks (B, …): each process computes its share of every one."""
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

    One message has all of them, in which the rows of processes that have fewer are padded: `rows`
    (r, …) of each tensor are here, of the `lengths` that all processes have together.
    """
    sizes = [
        -(-length // here.size) * math.prod(part.shape[1:])
        for length, part in zip(lengths, rows, strict=True)
    ]
    mine = rows[0].new_zeros(sum(sizes))
    for place, part in zip(mine.split(sizes), rows, strict=True):
        place[: part.numel()] = part.flatten()
    message = mine.new_empty(here.size * len(mine))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before 2.13
    gather(message, mine)
    by_tensor = message.view(here.size, -1).split(sizes, dim=1)
    return [
        of_all.reshape(-1, *part.shape[1:])[:length]
        for of_all, part, length in zip(by_tensor, rows, lengths, strict=True)
    ]
