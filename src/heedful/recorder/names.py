"""Which module is running: a stack of names that the modules of a model push and pop."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn


class Running:
    """While entered, knows the innermost running module of a model, and the number of the pass.

    A pass begins when a module of the model is called from outside. Calls in other threads, and
    those that gradient checkpointing repeats in the backward pass, are not of any pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stack: list[tuple[str, nn.Module]] = []
        self.forward = -1
        self.inputs: dict[str, Any] = {}
        self.names: list[str] = []
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> Running:
        self._thread = threading.get_ident()
        self.names = [name for name, _ in self.model.named_modules()]
        for name, module in self.model.named_modules():
            enter = module.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            leave = module.register_forward_hook(self._leave, always_call=True)
            self._handles += [enter, leave]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.stack.clear()

    @property
    def here(self) -> bool:
        """Whether the model is in a pass, in this thread, and not in the backward pass."""
        return (
            bool(self.stack)
            and threading.get_ident() == self._thread
            and torch._C._current_graph_task_id() == -1
        )

    @property
    def name(self) -> str:
        """The name of the innermost running module; that of its class where it is the model."""
        name, module = self.stack[-1]
        return name.removeprefix("_orig_mod.") or type(module).__name__

    def batch(self) -> int | None:
        """How many sequences the pass was given: the length of its first tensor."""
        tensors = (one for one in self.inputs.values() if isinstance(one, Tensor) and one.ndim)
        return next((len(tensor) for tensor in tensors), None)

    def _entering(self, name: str):
        def enter(module: nn.Module, arguments: tuple, keywords: dict) -> None:
            if threading.get_ident() != self._thread:
                return
            if not self.stack and torch._C._current_graph_task_id() == -1:
                self.forward += 1
                self.inputs = dict(keywords)
                if arguments:
                    self.inputs.setdefault("input_ids", arguments[0])
            self.stack.append((name, module))

        return enter

    def _leave(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        if threading.get_ident() == self._thread and self.stack:
            self.stack.pop()
