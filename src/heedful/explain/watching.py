"""What the modules of a model read and gave in one pass, taken from the pass itself.

So a walk shows the model's own numbers, whatever the order in which the model does its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn


class Seen(NamedTuple):
    """What a module was given, by place and by name, and what it gave back."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any

    @property
    def read(self) -> Tensor:
        """The first thing that it was given, of a batch of one."""
        return self.arguments[0][0]

    @property
    def made(self) -> Tensor:
        """What it gave back, of a batch of one."""
        return self.output[0]


@contextmanager
def watch(modules: Iterable[nn.Module]) -> Iterator[Mapping[nn.Module, Seen]]:
    """What each of these modules did last, while the context is open.

    >>> import torch
    >>> double = nn.Linear(1, 1, bias=False)
    >>> with torch.no_grad(), watch([double]) as seen:
    ...     _ = double.weight.fill_(2.0)
    ...     _ = double(torch.tensor([[3.0]]))
    >>> seen[double].read, seen[double].made
    (tensor([3.]), tensor([6.]))
    """
    seen: dict[nn.Module, Seen] = {}

    def remember(module: nn.Module, arguments: tuple, keywords: dict, output: Any) -> None:
        seen[module] = Seen(arguments, keywords, output)

    handles = [
        module.register_forward_hook(remember, with_kwargs=True)
        for module in dict.fromkeys(modules)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
