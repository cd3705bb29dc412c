"""How one process, or many, run a model: whole, a copy in each (DDP), or cut among them (FSDP2).

Each process reads its own sequences of a batch, and the gradients are added up. What wraps the
model is torch's own: `DistributedDataParallel` (Li et al. 2020, arXiv:2006.15704) and
`fully_shard` (Zhao et al. 2023, arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

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

    def training(self, function: Callable[..., T], *given: Any) -> T:
        """A function of the model whose result is differentiated."""
        return function(self.model, *given)

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

    def training(self, function: Callable[..., T], *given: Any) -> T:
        """A function of the model whose result is differentiated."""
        return self._runner(function, *given)

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
        groups = [group for stack in stacks for group in gathered(stack)]
        for group in groups:  # what runs last, or nearly, has its gradient first: it stays whole
            fully_shard(group, mesh=mesh, reshard_after_forward=group is not groups[-1])
        self._runner: Any = fully_shard(Runner(model), mesh=mesh)
        self._kept: list[Any] = [self._runner, *(group[0] for group in groups[-1:])]

    def training(self, function: Callable[..., T], *given: Any) -> T:
        """A function of the model whose result is differentiated."""
        return self._runner(function, *given)

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


def gathered(stack: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Blocks in their order, in groups of at least `LEAST` numbers, but for the last one.

    Blocks that have fewer together make none: they are gathered with what stands around them.

    >>> [len(group) for group in gathered([nn.Linear(1023, 1024)] * 5)], LEAST
    ([1, 1, 1, 1, 1], 1048576)
    >>> [len(group) for group in gathered([nn.Linear(1023, 512)] * 5)]
    [2, 2, 1]
    >>> gathered([nn.Linear(1023, 512)])
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
    """How the processes run a model together.

    Args:
        model: the same in each of them; on `device`, unless it is cut.
        cut: whether its weights are cut among them, if there are several.
    """
    if here.is_alone:
        return Passes(model)
    return Cut(model, device, here.size) if cut else Copies(model)
