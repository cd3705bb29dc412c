"""Knows which module of a model is running: each pushes its name on a stack, and pops it.

Hooks on its modules tell it. Only an encoder layer of torch gets none, nor does anything inside it:
one with a hook leaves its fused path. There a hook for all modules of the process says what is
called, and ignores modules that are not the model's. A layer of torch with no module in it, such as
a linear one, is no place where attention happens, nor is a `Sequential` of plain ones: of these, it
is noted only that they ran. A module whose `forward` is called itself has no hook that tells; what
runs in it does (`past_call.py`).
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from heedful.recorder.hooks import Hook, Hooks
from heedful.recorder.module_names import is_in, plain_name, side_of
from heedful.recorder.past_call import Forwards, is_called
from heedful.recorder.plain_layers import parts_of
from heedful.recorder.random_states import RandomStates
from heedful.recorder.tracing import is_traced

Modules: TypeAlias = dict[nn.Module, str]  # all of a model, with their names
_graph_task = torch._C._current_graph_task_id  # tells that of the backward pass, else -1
# torch reads its random state under a lock of its own and without letting other threads run, but
# where garbage is collected meanwhile. A second thread that begins to read it then blocks Python's
# lock and waits for torch's, whose holder waits for Python's. So recorders read it one at a time
READING = threading.RLock()
KNOWN = ("heedful", "transformers")  # packages whose models have arguments of known meanings
IN_SEQUENTIAL = nn.Sequential.forward.__code__
OF_TORCH = 3  # frames of torch's between a module's hook and who has called it
SENSES = ("vision", "visual", "image", "audio", "speech")  # names of modules that read no text


class Frame(NamedTuple):
    """A module that is running, the Python frame of its call, and its arguments.

    is_told: whether a hook tells when it ends; else `call` does.
    """

    name: str
    module: nn.Module
    call: FrameType
    arguments: tuple
    keywords: dict[str, Any]
    is_told: bool = True


class Given(NamedTuple):
    """What a pass was called with: the module that was called from outside, and its arguments.

    cached: how many tokens a cache of transformers among them held then; None where none tells.
    """

    module: nn.Module
    arguments: tuple
    keywords: dict[str, Any]
    cached: int | None = None


class Layers(Protocol):
    """What is told of simple layers of a model that runs."""

    def begins(self, layer: nn.Module, given: tuple) -> None:
        """Take note that a simple layer begins inside another module."""

    def resume(self) -> None:
        """Take note that no simple layer runs any more, as another module begins."""


class Running:
    """While entered, knows the innermost running module of a model, and the number of the pass.

    A pass begins when the model is called from outside, or a part of it that was called in this
    pass already: code that generates may call the parts one after the other. Calls in other
    threads, those that torch traces, and those that gradient checkpointing repeats in the backward
    pass, belong to no pass.
    """

    def __init__(self, model: nn.Module, modules: Modules) -> None:
        self.model, self.modules = model, modules
        home = _home_of(model)
        # whether it is ours, or of one whose arguments have known meanings
        self.is_ours, self.is_known = home == "heedful", home in KNOWN
        # whether it is so, and nobody has put code of their own into it
        self.is_as_made = False
        self.stack: list[Frame] = []
        self.pass_index = -1
        self.given = Given(model, (), {})  # to the pass; one object for each
        # the names of modules that ran, by that of the module which called them
        self.ran: dict[str | None, set[str]] = defaultdict(set)
        self.embedded: Tensor | None = None  # the whole numbers last looked up in a table
        self.random_states: RandomStates | None = None  # as the first pass found them
        self.ran_elsewhere = False  # whether the model was called in another thread
        self.was_traced = False  # whether torch traced a pass
        # how often such a model was called inside one of another package, and what a cache among
        # its arguments held the last time
        self.calls_of_known = 0
        self.cached_of_known: int | None = None
        self.ended: Callable[[], None] | None = None  # called once no module runs any more
        self.layers: Layers | None = None  # is told of simple layers
        self._encoders: dict[str, bool] = {}  # by the name of a model inside, whether it has one
        self._outer: set[str] = set()  # names of modules called from outside in this pass
        # by id(); `modules` holds them, so that it stays theirs, and no copy of one has it
        self._names: dict[int, str] = {}
        self._unhooked: set[str] = set()  # names of modules that get no hook
        self._entered: set[int] = set()  # of those that may be on the stack, the `id`
        self._forwards, self._is_looking = Forwards(), False
        self._hooks = Hooks()
        self._thread = threading.get_ident()

    def __enter__(self) -> Running:
        self._thread = threading.get_ident()
        modules = self.modules
        self._has_encoder = any("encoder" in name for name in modules.values())
        self._names = {id(module): name for module, name in modules.items()}
        self._unhooked = _fused(modules)
        hooks, noting = self._hooks, _Noting(self)
        entering, leaving = _Entering(self), _Leaving(self)
        for module, name in modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # what a scripted module calls cannot be seen
            if name not in self._unhooked and _is_simple(module):
                hooks.before(module, noting)
                continue
            self._entered.add(id(module))
            if name in self._unhooked:
                continue
            hooks.before(module, entering, with_kwargs=True)
            hooks.after(module, leaving)
        self._forwards = Forwards(one for one in modules if id(one) in self._entered)
        if self._unhooked:
            hooks.before_all(_EnteringUnhooked(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.remove()
        self.stack.clear()
        self._names, self._unhooked, self._entered = {}, set(), set()
        self._forwards = Forwards()
        self.embedded = None
        self._thread = -1  # hooks on copies of the model's modules have nothing to tell any more
        self.given = Given(self.model, (), {})

    @property
    def here(self) -> bool:
        """Whether the model runs in this thread, and not as part of the backward pass."""
        if not self.stack or threading.get_ident() != self._thread:
            return False
        self._drop_ended()
        return bool(self.stack) and _graph_task() == -1

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
        return plain_name(self.stack[-1].name)

    @property
    def writes(self) -> bool:
        """Whether the running module is in the decoder of a model that has an encoder too."""
        return side_of(self.stack[-1].name, self._has_encoder) == "decoder"

    @property
    def reader(self) -> Frame | None:
        """The outermost model that runs of those whose arguments have known meanings."""
        return next((frame for frame in self.stack if _home_of(frame.module) in KNOWN), None)

    def writes_in(self, frame: Frame) -> bool:
        """Whether the running module is in the decoder of one that runs and has an encoder too."""
        lead = f"{frame.name}." if frame.name else ""
        if lead not in self._encoders:
            inside = (name for name in self.modules.values() if name.startswith(lead))
            self._encoders[lead] = any("encoder" in name.removeprefix(lead) for name in inside)
        return side_of(self.stack[-1].name.removeprefix(lead), self._encoders[lead]) == "decoder"

    @property
    def reads_text(self) -> bool:
        """Whether the running module is in no part for images or sound."""
        parts = self.stack[-1].name.lower().split(".")
        return not any(sense in part for part in parts for sense in SENSES)

    @property
    def runs(self) -> bool:
        """A cheap form of `here`, which may still be True after Ctrl-C has ended the model."""
        stack = self.stack
        if stack and not stack[-1].is_told:
            self._drop_ended()
        return bool(stack) and _graph_task() == -1

    @property
    def is_idle(self) -> bool:
        """Whether no module is being called, though a method of one may run."""
        return not self.runs and _graph_task() == -1

    @property
    def innermost(self) -> Frame:
        """The innermost running module, and its call."""
        return self.stack[-1]

    def _enter_without_end(
        self, name: str, module: nn.Module, arguments: tuple, call: FrameType
    ) -> None:
        """Push a module of whose end no hook will tell, from a hook that is given no keywords."""
        keywords = call.f_locals.get("kwargs", {})
        self._push(Frame(name, module, call, arguments, keywords, False), None)

    def _push(self, frame: Frame, caller: FrameType | None) -> None:
        """Push a module, and before it those around it of which no hook tells.

        caller: the frame from which it was called; None where that is not known.
        """
        if threading.get_ident() != self._thread:
            self._runs_elsewhere()
            return
        self._drop_ended()
        if not self._has_called(caller):
            self._push_past_call(frame.call)
        self._push_called(frame)

    def _has_called(self, caller: FrameType | None) -> bool:
        """Whether a call comes from the `forward` of the innermost module, as most do.

        A hook on that module is as good, as no `forward` lies between.
        Inside another module a `Sequential` is no place of its own: its parts have their names.
        """
        if not self.stack or caller is None:
            return False
        call = self.stack[-1].call
        if caller is call:
            return True
        if not is_called(caller):
            return False
        is_sequential = caller.f_code is IN_SEQUENTIAL
        return caller.f_back is call or (is_sequential and self._has_called(_caller_of(caller)))

    def finds_forward(self) -> bool:
        """Whether a module runs whose `forward` was called itself, while no other does."""
        if self._is_looking or _graph_task() != -1 or threading.get_ident() != self._thread:
            return False
        self._is_looking = True  # what is done to begin a pass comes here again
        try:
            self._drop_ended()
            self._push_past_call(sys._getframe(1))
        finally:
            self._is_looking = False
        return bool(self.stack)

    def _push_past_call(self, call: FrameType) -> None:
        """Push the modules that run around a call since that of the innermost, with no hook."""
        until = self.stack[-1].call if self.stack else None
        for module, frame, arguments, keywords in self._forwards.running(call, until):
            is_new = all(one.module is not module for one in self.stack)
            if is_new and id(module) in self._entered:
                name = self._names[id(module)]
                self._push_called(Frame(name, module, frame, arguments, keywords, False))

    def _push_called(self, frame: Frame) -> None:
        if self.layers is not None:
            self.layers.resume()
        if not self.stack and is_traced((*frame.arguments, *frame.keywords.values())):
            self.was_traced = True
            return
        if not self.stack and _graph_task() == -1:
            self._begin(frame)
        if not self.is_known and _home_of(frame.module) in KNOWN and self.reader is None:
            self.calls_of_known += 1
            self.cached_of_known = _cached((*frame.arguments, *frame.keywords.values()))
        self.ran[self.stack[-1].name if self.stack else None].add(frame.name)
        self.stack.append(frame)
        if isinstance(frame.module, nn.Embedding) and frame.arguments:
            self.embedded = frame.arguments[0]

    def _runs_elsewhere(self) -> None:
        """Take note of a call in another thread.

        What hooks on copies tell once this has ended is none, nor what is recomputed for gradients.
        """
        self.ran_elsewhere |= self._thread != -1 and _graph_task() == -1

    def _leave(self, module: nn.Module) -> None:
        if threading.get_ident() != self._thread:
            return
        if self.stack and self.stack[-1].module is module:
            self.stack.pop()
        # another hook may have raised before this module was pushed
        elif any(frame.module is module for frame in self.stack):
            while self.stack.pop().module is not module:
                pass
        if not self.stack and self.ended is not None:
            self.ended()

    def _drop_ended(self) -> None:
        """Pop modules of whose end no hook tells: those without one, and after Ctrl-C all."""
        while self.stack and not _is_open(self.stack[-1].call):
            self.stack.pop()

    def _begin(self, frame: Frame) -> None:
        is_model = frame.module is self.model
        if not self._outer or is_model or self._outer & {"", frame.name}:
            self.pass_index += 1
            cached = _cached((*frame.arguments, *frame.keywords.values()))
            self.given = Given(frame.module, frame.arguments, frame.keywords, cached)
            self._outer = set()
            if self.pass_index == 0:
                with READING:
                    self.random_states = RandomStates.now()
        self._outer.add(frame.name)


class _Entering(Hook):
    """Tells that a module is called; a copy that the user has made of one is another model."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, keywords: dict) -> None:
        running = self.teller
        if is_dynamo_compiling():  # dynamo follows it, and cannot look at frames
            return
        name = running._names.get(id(module)) if running else None
        if name is not None:
            call = sys._getframe(1)
            running._push(Frame(name, module, call, arguments, keywords), _caller())
        elif running and threading.get_ident() != running._thread:  # they have copies of modules
            running._runs_elsewhere()


class _Leaving(Hook):
    """Tells that a module has ended."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        if self.teller and not is_dynamo_compiling():
            self.teller._leave(module)


class _Noting(Hook):
    """Notes that a simple layer is called."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple) -> None:
        running = self.teller
        name = running._names.get(id(module)) if running and not is_dynamo_compiling() else None
        if name is None:
            return
        stack, is_here = running.stack, threading.get_ident() == running._thread
        if is_here and stack and not stack[-1].is_told:
            running._drop_ended()
        if is_here and not running._has_called(_caller()):
            running._push_past_call(sys._getframe(1))
        if not stack:  # it is called from outside
            running._enter_without_end(name, module, arguments, sys._getframe(1))
        elif is_here:
            running.ran[stack[-1].name].add(name)
            if running.layers is not None:
                running.layers.begins(module, arguments)


class _EnteringUnhooked(Hook):
    """Tells that one of the modules is called that have no hook of their own."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple) -> None:
        running = self.teller
        name = running._names.get(id(module)) if running and not is_dynamo_compiling() else None
        if name is not None and name in running._unhooked:
            running._enter_without_end(name, module, arguments, sys._getframe(1))


def _caller() -> FrameType | None:
    """The frame that has called a module, from a hook on it; a few of torch's are between."""
    try:
        return sys._getframe(2 + OF_TORCH)  # to go back frame by frame makes an object of each
    except ValueError:
        return None


def _caller_of(forward: FrameType) -> FrameType | None:
    """The frame from which a module with no hook was called, by that of its `forward`.

    Where it has one, or there is one for all modules, it is a frame of torch's.
    """
    frame: FrameType | None = forward
    for _ in range(OF_TORCH):
        frame = frame and frame.f_back
    return frame


def _home_of(model: Any) -> str:
    """The package that a model's class is of."""
    # not by `getattr`, for which torch words an error where there is none: each call asks
    if "_orig_mod" in (inside := model._modules):
        model = inside["_orig_mod"]
    kind: Any = type(model)  # which a cache would hold longer than its model lives
    return kind.__module__.partition(".")[0]


def _cached(values: tuple) -> int | None:
    """How many tokens the first cache of transformers among these holds; None where none tells."""
    for value in values:
        with suppress(Exception):  # as of a cache that holds states, or a dict that has no such key
            return int(value.get_seq_length())
    return None


def _is_simple(module: nn.Module) -> bool:
    """Whether it is a layer of torch that calls no others, and that nobody has put a hook on.

    Plain layers one after the other are one too. An embedding is none: what is looked up in it is
    kept.
    """
    is_torchs = type(module).__module__.startswith("torch.nn.modules.")
    if not is_torchs or isinstance(module, nn.Embedding):
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if not module._modules:
        return True
    parts = parts_of(module)
    return bool(parts) and all(map(_is_simple, parts))


def _fused(modules: Modules) -> set[str]:
    """The names of encoder layers of torch, and of all that is in them.

    Of a compiled model none: it runs uncompiled, and torch warns of hooks for all modules there.
    """
    layers = [name for one, name in modules.items() if isinstance(one, nn.TransformerEncoderLayer)]
    if not layers or any("_orig_mod" in name for name in modules.values()):
        return set()
    return {name for name in modules.values() for layer in layers if is_in(name, layer)}


def _is_open(call: FrameType) -> bool:
    """Whether a Python frame is still running; usually it is a few frames up from here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call
