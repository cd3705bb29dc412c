"""Knows which module of a model is running: each pushes its name on a stack, and pops it.

Global hooks tell it, those of torch for all modules of the process, and ignore modules that are not
the model's. Hooks on the modules themselves would change what runs: an encoder layer of torch that
has a hook leaves its fused path, and a module that is copied, pickled or scripted takes its hooks
along.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

SENSES = ("vision", "visual", "image", "audio", "speech")  # names of modules that read no text


def layer_of(name: str) -> int | None:
    """The number of the block that a module is in: the first number in its name, None without one.

    >>> layer_of("decoder.block.2.layer.1.EncDecAttention"), layer_of("pool")
    (2, None)
    """
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


class Frame(NamedTuple):
    """A module that is running, and the Python frame of its call.

    positional: its positional arguments when our hook ran; other hooks may have changed them since.
    """

    name: str
    module: nn.Module
    call: FrameType
    positional: tuple

    @property
    def arguments(self) -> tuple:
        """Its positional arguments, as other hooks have left them."""
        return self.call.f_locals.get("args", self.positional)

    @property
    def keywords(self) -> dict[str, Any]:
        """Its keyword arguments, read from the frame: global hooks are not given them."""
        return self.call.f_locals.get("kwargs", {})


class Running:
    """While entered, knows the innermost running module of a model, and the number of the pass.

    A pass begins when the model is called from outside, or a part of it that was called in this
    pass already: code that generates may call the parts one after the other. Calls in other
    threads, and those that gradient checkpointing repeats in the backward pass, belong to no pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stack: list[Frame] = []
        self.pass_index = -1
        self.outermost: Frame | None = None  # the call from outside that began the pass
        self.ran: set[str] = set()  # names of modules that have run
        self._outer: set[str] = set()  # names of modules called from outside in this pass
        self._names: dict[int, str] = {}  # names of the model's modules, by id()
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> Running:
        self._thread = threading.get_ident()
        modules = list(self.model.named_modules())
        self._has_encoder = any("encoder" in name for name, _ in modules)
        # what a scripted module calls cannot be seen, so it counts as no module
        self._names = {
            id(module): name
            for name, module in modules
            if not isinstance(module, torch.jit.ScriptModule)
        }
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
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
        self.outermost = None

    @property
    def here(self) -> bool:
        """Whether the model runs in this thread, and not as part of the backward pass."""
        if not self.stack or threading.get_ident() != self._thread:
            return False
        self._drop_ended()
        return bool(self.stack) and torch._C._current_graph_task_id() == -1

    @property
    def name(self) -> str:
        """The name of the innermost running module; the name of its class if it is the model."""
        module = self.stack[-1].module
        return self._name or type(getattr(module, "_orig_mod", module)).__name__

    def name_of(self, part: str) -> str:
        """The name of a part of the innermost running module."""
        return f"{self._name}.{part}" if self._name else part

    @property
    def _name(self) -> str:
        parts = self.stack[-1].name.split(".")
        return ".".join(part for part in parts if part not in ("", "_orig_mod"))

    @property
    def writes(self) -> bool:
        """Whether the running module is in the decoder of a model that has an encoder too."""
        return self._has_encoder and "decoder" in self.stack[-1].name.split(".")

    @property
    def is_known(self) -> bool:
        """Whether the model is ours or of transformers, whose arguments have known meanings."""
        model = getattr(self.model, "_orig_mod", self.model)
        return type(model).__module__.split(".")[0] in ("heedful", "transformers")

    @property
    def reads_text(self) -> bool:
        """Whether the running module is in no part for images or sound."""
        parts = self.stack[-1].name.lower().split(".")
        return not any(sense in part for part in parts for sense in SENSES)

    @property
    def runs(self) -> bool:
        """A cheap form of `here`, which may still be True after Ctrl-C has ended the model."""
        return bool(self.stack) and torch._C._current_graph_task_id() == -1

    @property
    def innermost(self) -> Frame:
        """The innermost running module, and its call."""
        return self.stack[-1]

    def _enter(self, module: nn.Module, arguments: tuple) -> None:
        name = self._names.get(id(module))
        if name is None or threading.get_ident() != self._thread:
            return
        self._drop_ended()
        frame = Frame(name, module, sys._getframe(1), arguments)
        if not self.stack and torch._C._current_graph_task_id() == -1:
            self._begin(frame)
        self.stack.append(frame)
        self.ran.add(name)

    def _leave(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        if id(module) not in self._names or threading.get_ident() != self._thread:
            return
        # another hook may have raised before this module was pushed
        if any(frame.module is module for frame in self.stack):
            while self.stack.pop().module is not module:
                pass

    def _drop_ended(self) -> None:
        """Pop modules that Ctrl-C has ended, of which no hook is told."""
        while self.stack and not _is_open(self.stack[-1].call):
            self.stack.pop()

    def _begin(self, frame: Frame) -> None:
        is_model = frame.module is self.model
        if not self._outer or is_model or self._outer & {"", frame.name}:
            self.pass_index += 1
            self.outermost = frame
            self._outer = set()
        self._outer.add(frame.name)


def _is_open(call: FrameType) -> bool:
    """Whether a Python frame is still running; usually it is a few frames up from here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call
