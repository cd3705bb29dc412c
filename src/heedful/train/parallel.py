"""Data-parallel training in one or more processes, with a replicated or a sharded model.

Each process reads its own sequences of a batch. torch averages the gradients over the processes;
`train/loop.py` scales the losses so that the average is the gradient of the mean over all targets.

torch wraps the model by `DistributedDataParallel` (Li et al. 2020, arXiv:2006.15704) or by
`fully_shard` (FSDP2; Zhao et al. 2023, arXiv:2304.11277). With FSDP2 each process stores some rows
of every weight, as a DTensor; buffers are replicated. A single process uses neither.
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


class FunctionModule(nn.Module):
    """A module whose forward calls any function on a model, so that DDP and FSDP2 can wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *inputs: Any) -> T:
        """Return function(model, *inputs)."""
        return function(self.model, *inputs)


class ModelRunner:
    """Runs functions of a model in one process; the subclasses, in several processes."""

    is_sharded = False  # if True, all processes must run the model at the same time

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._module: Any = FunctionModule(model)

    def run_training(self, function: Callable[..., T], *inputs: Any) -> T:
        """Return function(model, *inputs), computed with gradients."""
        return self._module(function, *inputs)

    def run_inference(self, function: Callable[..., T], *inputs: Any) -> T:
        """Return function(model, *inputs), computed without gradients."""
        with torch.inference_mode():
            return function(self.model, *inputs)

    def accumulate(self, is_last: bool) -> AbstractContextManager[None]:
        """Return a context in which a backward pass adds to the gradients of a step.

        For the last batch of a step (`is_last`), the pass also averages gradients over processes.
        """
        return nullcontext()


class Replicated(ModelRunner):
    """A copy of the model in each process (DDP)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._module = nn.parallel.DistributedDataParallel(
            FunctionModule(model), forward_sync_buffers=False
        )

    def accumulate(self, is_last: bool) -> AbstractContextManager[None]:
        """See `ModelRunner.accumulate`."""
        return nullcontext() if is_last else self._module.no_sync()


class Sharded(ModelRunner):
    """Some rows of every weight in each process (FSDP2); a block is gathered only while it runs.

    Construct the optimizer after this runner, because FSDP2 replaces the model's parameters.
    """

    is_sharded = True

    def __init__(self, model: nn.Module, device: torch.device, size: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model)
        mesh = init_device_mesh(device.type, (size,))
        stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
        for block in (block for stack in stacks for block in stack):
            fully_shard(block, mesh=mesh)
        self._module = fully_shard(FunctionModule(model), mesh=mesh)

    def run_inference(self, function: Callable[..., T], *inputs: Any) -> T:
        """Return function(model, *inputs), computed without gradients."""
        with torch.no_grad():  # weights gathered in inference mode cannot be trained later
            result = self._module(function, *inputs)
        self._module.reshard()  # torch frees the weights outside the blocks only in a backward pass
        return result

    def accumulate(self, is_last: bool) -> AbstractContextManager[None]:
        """See `ModelRunner.accumulate`."""
        self._module.set_requires_gradient_sync(is_last)
        return nullcontext()


def model_runner(
    model: nn.Module, processes: Processes, device: torch.device, shard: bool
) -> ModelRunner:
    """Return the runner for a model; without `shard`, the model must already be on `device`."""
    if processes.is_single:
        return ModelRunner(model)
    return Sharded(model, device, processes.size) if shard else Replicated(model)


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor, of which this process stores some rows."""
    return hasattr(tensor, "full_tensor")  # isinstance would import DTensor


def local_rows(tensor: Tensor) -> Tensor:
    """Return a view of the rows that this process stores."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather all rows of a tensor; every process must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def first_row(tensor: Tensor) -> int:
    """Return the index of the first local row; FSDP2 splits rows as `torch.chunk` does."""
    if not is_sharded(tensor):
        return 0
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    rows = -(-tensor.shape[0] // mesh.size())
    return min(mesh.get_local_rank() * rows, tensor.shape[0])


def overlap(tensor: Tensor, start: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a view of the local rows in [start, start + len(values)), and their `values`."""
    rows, first = local_rows(tensor), start - first_row(tensor)
    low, high = max(0, first), max(0, min(len(rows), first + len(values)))
    return rows[low:high], values[low - first : max(low, high) - first]


@torch.no_grad()
def copy_rows(tensor: Tensor, values: Tensor) -> None:
    """Copy `values` into the local rows of a tensor; `values` are full, or sharded the same way."""
    if is_sharded(tensor) and not is_sharded(values):
        tensor, values = overlap(tensor, 0, values)
    local_rows(tensor).copy_(local_rows(values))


def map_distributed(
    function: Callable[[Tensor], Tensor], stacks: Iterable[Tensor], processes: Processes
) -> Iterator[Tensor]:
    """Yield function(stack) for each stack (B, …); each process computes a share of its B rows.

    The function must treat the rows independently.
    """
    if processes.is_single:
        yield from map(function, stacks)
        return
    parts, lengths = [], []
    for stack in stacks:
        rows_per_process = -(-len(stack) // processes.size)
        share = stack[rows_per_process * processes.rank : rows_per_process * (processes.rank + 1)]
        parts.append(function(share) if len(share) else share.clone())
        lengths.append(len(stack))
        del stack, share  # free the stack before the next one is made
    yield from all_gather(parts, lengths, processes)


def all_gather(rows: Sequence[Tensor], counts: Sequence[int], processes: Processes) -> list[Tensor]:
    """Gather the full tensors whose rows are split among the processes as by `torch.chunk`.

    `rows` has this process's rows (r, …) of each tensor, `counts` the number of rows of each full
    tensor. All tensors are sent in one message, padded to equal size.
    """
    sizes = [
        -(-count // processes.size) * math.prod(part.shape[1:])
        for count, part in zip(counts, rows, strict=True)
    ]
    message = rows[0].new_zeros(sum(sizes))
    for padded, part in zip(message.split(sizes), rows, strict=True):
        padded[: part.numel()] = part.flatten()
    messages = message.new_empty(processes.size * len(message))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch < 2.13
    gather(messages, message)
    by_tensor = messages.view(processes.size, -1).split(sizes, dim=1)
    return [
        all_rows.reshape(-1, *part.shape[1:])[:count]
        for all_rows, part, count in zip(by_tensor, rows, counts, strict=True)
    ]
