"""Which module is running: a stack of names that the modules of a model push and pop."""

from __future__ import annotations

import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn

SENSES = ("vision", "visual", "image", "audio", "speech")  # in the names of modules


def layer_of(name: str) -> int | None:
    """The model's own number of the block that a module is in: the first one in its name.

    >>> layer_of("decoder.block.2.layer.1.EncDecAttention"), layer_of("pool")
    (2, None)
    """
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


class Frame(NamedTuple):
    """A module that is running, the call of Python that runs it, and what it was called with."""

    name: str
    module: nn.Module
    call: FrameType
    arguments: tuple
    keywords: dict[str, Any]


class Running:
    """While entered, knows the innermost running module of a model, and the number of the pass.

    A pass begins when the model is called from outside, or a part of it that the pass has had
    already: who generates may call parts one after the other. Calls in other threads, and those
    that gradient checkpointing repeats in the backward pass, are not of any pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stack: list[Frame] = []
        self.pass_index = -1
        self.given: tuple[nn.Module, tuple, dict[str, Any]] = (model, (), {})  # to the pass
        self.ran: set[str] = set()  # names of modules that have run
        self._outer: set[str] = set()  # names of what was called from outside in this pass
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> Running:
        self._thread = threading.get_ident()
        modules = list(self.model.named_modules())
        self._has_encoder = any("encoder" in name for name, _ in modules)
        for name, module in modules:
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks of this kind, and what it calls is not seen either
            enter = module.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            leave = module.register_forward_hook(self._leaving(), always_call=True)
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
        self._thread = -1  # hooks on copies of the model's parts are done, too
        self.given = (self.model, (), {})

    @property
    def here(self) -> bool:
        """Whether the model is in a pass, in this thread, and not in the backward pass."""
        if not self.stack or threading.get_ident() != self._thread:
            return False
        self._drop_ended()
        return bool(self.stack) and torch._C._current_graph_task_id() == -1

    @property
    def name(self) -> str:
        """The name of the innermost running module; that of its class where it is the model."""
        name, module, *_ = self.stack[-1]
        if name in ("", "_orig_mod"):
            return type(getattr(module, "_orig_mod", module)).__name__
        return ".".join(part for part in name.split(".") if part != "_orig_mod")

    @property
    def writes(self) -> bool:
        """Whether what runs is of the decoder, in a model that has an encoder too."""
        return self._has_encoder and "decoder" in self.stack[-1].name.split(".")

    @property
    def is_known(self) -> bool:
        """Whether the model is ours or of transformers, whose arguments have known meanings."""
        model = getattr(self.model, "_orig_mod", self.model)
        return type(model).__module__.split(".")[0] in ("heedful", "transformers")

    @property
    def reads_text(self) -> bool:
        """Whether what runs is not of a part that sees or hears."""
        parts = self.stack[-1].name.lower().split(".")
        return not any(sense in part for part in parts for sense in SENSES)

    @property
    def runs(self) -> bool:
        """As `here`, but cheap: after Ctrl-C it may still say so, which `here` settles."""
        return bool(self.stack) and torch._C._current_graph_task_id() == -1

    @property
    def innermost(self) -> Frame:
        """The module that runs, and its call."""
        return self.stack[-1]

    def _entering(self, name: str):
        def enter(module: nn.Module, arguments: tuple, keywords: dict) -> None:
            if threading.get_ident() != self._thread:
                return
            self._drop_ended()
            if not self.stack and torch._C._current_graph_task_id() == -1:
                self._begin(name, module, arguments, keywords)
            self.stack.append(Frame(name, module, sys._getframe(1), arguments, keywords))
            self.ran.add(name)

        return enter

    def _drop_ended(self) -> None:
        """Forget modules that Ctrl-C has ended, which no hook is told."""
        while self.stack and not _is_open(self.stack[-1].call):
            self.stack.pop()

    def _begin(self, name: str, module: nn.Module, arguments: tuple, keywords: dict) -> None:
        if not self._outer or module is self.model or self._outer & {"", name}:
            self.pass_index += 1
            self.given = (module, arguments, keywords)
            self._outer = set()
        self._outer.add(name)

    def _leaving(self):
        # functions, for a model may copy a part of itself: these are shared, and methods copied
        def leave(module: nn.Module, arguments: tuple, output: Any) -> None:
            if threading.get_ident() != self._thread:
                return
            # a hook of somebody else may have raised before this module was pushed
            if any(frame.module is module for frame in self.stack):
                while self.stack.pop().module is not module:
                    pass

        return leave


def _is_open(call: FrameType) -> bool:
    """Whether a call of Python is one of those that are open; mostly it is a few steps away."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call
