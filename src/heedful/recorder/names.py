"""Which module is running: a stack of names that the modules of a model push and pop."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.recorder.inputs import Inputs, texts_in

SENSES = ("vision", "visual", "image", "audio", "speech")  # in the names of modules


class Frame(NamedTuple):
    """A module that is running, and the call of Python that runs it."""

    name: str
    module: nn.Module
    call: FrameType
    given: Tensor | None  # the first of its arguments that is a tensor


class Running:
    """While entered, knows the innermost running module of a model, and the number of the pass.

    A pass begins when the model is called from outside, or a part of it that the pass has had
    already: who generates may call parts one after the other. Calls in other threads, and those
    that gradient checkpointing repeats in the backward pass, are not of any pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stack: list[Frame] = []
        self.forward = -1
        self.inputs = Inputs(model)
        self._outer: set[str] = set()  # names of what was called from outside in this pass
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> Running:
        self._thread = threading.get_ident()
        names = [name.split(".") for name, _ in self.model.named_modules()]
        self._has_encoder = any("encoder" in part for name in names for part in name)
        for name, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks of this kind, and what it calls is not seen either
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
    def reads_text(self) -> bool:
        """Whether what runs is not of a part that sees or hears."""
        parts = self.stack[-1].name.lower().split(".")
        return not any(sense in part for part in parts for sense in SENSES)

    def texts(self, rows: int, lengths: Collection[int]) -> int:
        """Of how many texts so many tables (N, M) of a call are, as the pass was given them."""
        texts = self.inputs.texts(rows, lengths)
        for frame in reversed(self.stack):  # which may part them: windows ride in the batch
            given = frame.given
            if given is None or given.ndim < 3 or (given.ndim > 3 and len(given) in lengths):
                continue  # which says nothing, or may have its positions first
            inner = texts_in(given, lengths)
            if inner < rows:
                fits = inner % texts == 0 or not self.inputs.tensors  # a dictionary, say
                return inner if fits and rows % inner == 0 else texts
        return texts

    def _entering(self, name: str):
        def enter(module: nn.Module, arguments: tuple, keywords: dict) -> None:
            if threading.get_ident() != self._thread:
                return
            self._drop_ended()
            if not self.stack and torch._C._current_graph_task_id() == -1:
                self._begin(name, module, arguments, keywords)
            given = next((one for one in arguments if isinstance(one, Tensor)), None)
            self.stack.append(Frame(name, module, sys._getframe(1), given))

        return enter

    def _drop_ended(self) -> None:
        """Forget modules that Ctrl-C has ended, which no hook is told."""
        while self.stack and not _is_open(self.stack[-1].call):
            self.stack.pop()

    def _begin(self, name: str, module: nn.Module, arguments: tuple, keywords: dict) -> None:
        if not self._outer or module is self.model or self._outer & {"", name}:
            self.forward += 1
            self.inputs = Inputs(module, arguments, keywords)
            self._outer = set()
        self._outer.add(name)

    def _leave(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        # a hook of somebody else may have raised before this module was pushed
        if any(frame.module is module for frame in self.stack):
            while self.stack.pop().module is not module:
                pass


def _is_open(call: FrameType) -> bool:
    """Whether a call of Python is one of those that are open; mostly it is a few steps away."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call
