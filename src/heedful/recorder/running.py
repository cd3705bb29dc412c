"""Knows which module of a model is running: each pushes its name on a stack, and pops it.

Hooks on its modules do that. An encoder layer of torch gets none, nor does anything inside it: with
a hook it leaves its fused path. There hooks for all modules of the process do it, and ignore other
models. Attention is not computed in a layer of torch with no module in it, such as a linear one,
nor in a `Sequential` of these: of them it is noted only that they ran.

A `forward` that is called directly runs no hook of its module, so what runs in it has the names of
the modules that it calls.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from heedful.recorder.hooks import Hook, Hooks
from heedful.recording.module_names import is_in, plain_name, side_of
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
SENSES = ("vision", "visual", "image", "audio", "speech")  # names of modules that read no text


class Frame(NamedTuple):
    """A module that is running, and its arguments."""

    name: str
    module: nn.Module
    arguments: tuple
    keywords: dict[str, Any]


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
        # whether all its attention is told by the modules that attend, and its leaves hold none
        self.tells_all = False
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
            if self.tells_all and module is not self.model and self._is_leaf(module):
                continue
            if name not in self._unhooked and _is_simple(module):
                hooks.before(module, noting)
                continue
            if name in self._unhooked:
                continue
            hooks.before(module, entering, with_kwargs=True)
            hooks.after(module, leaving)
        if self._unhooked:
            hooks.of_all(_EnteringUnhooked(self), _LeavingUnhooked(self))
        return self

    def _is_leaf(self, module: nn.Module) -> bool:
        """Whether a module calls no others, and nothing that it is given is to be kept."""
        return not (module._modules or (self.is_ours and isinstance(module, nn.Embedding)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.remove()
        self.stack.clear()
        self._names, self._unhooked = {}, set()
        self.embedded = None
        self._thread = -1  # hooks on copies of the model's modules have nothing to tell any more
        self.given = Given(self.model, (), {})

    @property
    def here(self) -> bool:
        """Whether the model runs in this thread, and not as part of the backward pass."""
        return self.runs and threading.get_ident() == self._thread

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
        """Whether the model runs in any thread, and not as part of the backward pass."""
        return bool(self.stack) and _graph_task() == -1

    @property
    def is_idle(self) -> bool:
        """Whether no module is being called, though a method of one may run."""
        return not self.runs and _graph_task() == -1

    @property
    def is_in_known(self) -> bool:
        """Whether the module that runs is of a package whose arguments have known meanings."""
        return _home_of(self.stack[-1].module) in KNOWN

    @property
    def innermost(self) -> Frame:
        """The innermost running module, and its call."""
        return self.stack[-1]

    def _push(self, frame: Frame) -> None:
        if threading.get_ident() != self._thread:
            self._runs_elsewhere()
            return
        if self.stack and frame.module is self.model:
            self.stack.clear()  # its last call has ended by Ctrl-C, of which torch tells no hook
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
        if is_dynamo_compiling():
            return
        name = running._names.get(id(module)) if running else None
        if name is not None:
            running._push(Frame(name, module, arguments, keywords))
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
        if threading.get_ident() != running._thread:
            running._runs_elsewhere()
            return
        stack = running.stack
        running.ran[stack[-1].name if stack else None].add(name)
        if not stack and _graph_task() == -1:  # it is called from outside
            running._begin(Frame(name, module, arguments, {}))
        elif running.layers is not None:
            running.layers.begins(module, arguments)


class _EnteringUnhooked(Hook):
    """Tells that one of the modules is called that have no hook of their own."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple) -> None:
        running = self.teller
        name = running._names.get(id(module)) if running and not is_dynamo_compiling() else None
        if name is not None and name in running._unhooked:
            running._push(Frame(name, module, arguments, {}))


class _LeavingUnhooked(Hook):
    """Tells that one of the modules has ended that have no hook of their own."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        running = self.teller
        name = running._names.get(id(module)) if running and not is_dynamo_compiling() else None
        if name is not None and name in running._unhooked:
            running._leave(module)


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
