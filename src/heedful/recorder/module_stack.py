"""Knows which module of a model is running: forward hooks push its name on a stack, and pop it.

Layers of torch with no module in them, such as a linear layer, get no hook. Encoder layers of torch
leave their fused path for a hook, and scripted modules take none, so hooks for all modules of the
process watch these. A `forward` that is called directly runs no hook: what runs in it has the name
of the module around it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from heedful.recorder.tracing import is_traced
from heedful.recording.module_names import Modules, is_in, plain_name, side_of

_graph_task = torch._C._current_graph_task_id  # tells that of the backward pass, else -1
SENSES = ("vision", "visual", "image", "audio", "speech")  # names of modules that read no text


class Hook:
    """A hook of a module, with which the module can be copied and saved.

    A copy of a module shares it; loaded from a file it is a hook that does nothing.

    running: what it tells of calls; None once the recording has ended.
    names: of the modules that it is for, by their `id`.
    """

    __slots__ = ("names", "running")

    def __init__(self, running: Running | None = None, names: Mapping[int, str] = {}) -> None:
        self.running, self.names = running, names

    def __call__(self, *given: Any) -> None:
        """Do nothing."""

    def silence(self) -> None:
        """Hold nothing of the recording any more."""
        self.running, self.names = None, {}

    def __deepcopy__(self, memo: dict) -> Hook:
        return self

    def __reduce__(self) -> tuple:
        return Hook, ()


# In names of classes of modules that never attend
WITHOUT_ATTENTION = ("Norm", "Activation", "Rotary")


class Frame(NamedTuple):
    """A module that is running, and its arguments.

    number: of this call, among all calls of a pass or of a model of a known package.
    run: which call of this module it is in its pass.
    cached: how many tokens a cache among the arguments held; None where none tells.
    """

    name: str
    module: nn.Module
    arguments: tuple
    keywords: dict[str, Any]
    number: int = 0
    run: int = 0
    cached: int | None = None


class Running:
    """While entered, knows the innermost running module of a model, and the number of the pass.

    A pass begins when the model is called from outside, or a part of it that was called in this
    pass already. Calls in other threads, traced ones, and those that gradient checkpointing repeats
    belong to no pass.

    pass_index: the number of the pass, from 0; -1 before the first.
    root: the call from outside that began the pass.
    ran: the names of the modules that were called.
    embedded: the whole numbers that were last looked up in a table.
    ran_elsewhere, was_traced: whether the model was called in another thread, or traced.
    """

    def __init__(self, model: nn.Module, modules: Modules) -> None:
        self.model, self.modules = model, modules
        self.is_known = is_known(model)
        self.stack: list[Frame] = []
        self.pass_index = -1
        self.root: Frame | None = None
        self.ran: set[str] = set()
        self.embedded: Tensor | None = None
        self.ran_elsewhere = False
        self.was_traced = False
        self._known_calls = 0
        self._runs: Counter[str] = Counter()  # of each module in this pass
        self._has_encoder = any("encoder" in name for name in modules.values())
        self._outer: set[str] = set()  # names of modules called from outside in this pass
        self._hooks: tuple[Hook, ...] = ()
        self._handles: list[RemovableHandle] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> Running:
        self._thread = threading.get_ident()
        # by id(): `modules` holds them, so that it stays theirs, and no copy of one has it
        hooked, unhooked = dict[int, str](), dict[int, str]()
        fused = _fused(self.modules)
        enter, leave = self._hooks = _Entering(self, hooked), _Leaving(self, hooked)
        for module, name in self.modules.items():
            if name in fused or isinstance(module, torch.jit.ScriptModule):
                unhooked[id(module)] = name
            elif module is self.model or _may_attend(module):
                hooked[id(module)] = name
                self._handles += [
                    module.register_forward_pre_hook(enter, with_kwargs=True),
                    module.register_forward_hook(leave, always_call=True),
                ]
        if unhooked:
            self._hooks += _Entering(self, unhooked), _Leaving(self, unhooked)
            self._handles += [
                register_module_forward_pre_hook(self._hooks[2]),
                register_module_forward_hook(self._hooks[3], always_call=True),
            ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        for hook in self._hooks:  # which copies of the model have too
            hook.silence()
        self._handles.clear()
        self.stack.clear()
        self.embedded = self.root = None
        self._thread = -1  # hooks on copies of the model's modules have nothing to tell any more

    @property
    def here(self) -> bool:
        """Whether the model runs in this thread, and not as part of the backward pass."""
        runs = bool(self.stack) and _graph_task() == -1
        return runs and threading.get_ident() == self._thread

    @property
    def name(self) -> str:
        """The name of the innermost running module; the name of its class if it is the model."""
        frame = self.stack[-1]
        return plain_name(frame.name) or class_of(frame.module).__name__

    @property
    def _known(self) -> Frame | None:
        """The outermost model of a known package that runs."""
        return next((frame for frame in self.stack if is_known(frame.module)), None)

    @property
    def reader(self) -> Frame:
        """The call whose arguments tell of texts: that of the outermost model of a known package
        that runs, else that of the pass."""
        known = None if self.is_known else self._known
        return known or self.root or self.stack[0]

    @property
    def writes(self) -> bool:
        """Whether the running module is in the decoder of a model that has an encoder too."""
        return side_of(self.stack[-1].name, self._has_encoder) == "decoder"

    @property
    def reads_text(self) -> bool:
        """Whether the running module is in no part for images or sound."""
        parts = self.stack[-1].name.lower().split(".")
        return not any(sense in part for part in parts for sense in SENSES)

    def _push(self, name: str, module: nn.Module, arguments: tuple, keywords: dict) -> None:
        if threading.get_ident() != self._thread:
            # once this has ended, copies of its hooks tell nothing; nor does what is recomputed
            self.ran_elsewhere |= self._thread != -1 and _graph_task() == -1
            return
        if self.stack and module is self.model:
            self.stack.clear()  # its last call has ended by Ctrl-C, of which torch tells no hook
        frame = Frame(name, module, arguments, keywords, run=self._runs[name])
        if not self.stack and is_traced((*arguments, *keywords.values())):
            self.was_traced = True
            return
        if not self.stack and _graph_task() == -1:
            frame = self._begin(frame)
        elif not self.is_known and is_known(module) and self._known is None:
            self._known_calls += 1
            cached = _cached((*arguments, *keywords.values()))
            frame = frame._replace(number=self._known_calls, cached=cached)
        self.ran.add(name)
        self._runs[name] += 1
        self.stack.append(frame)
        if isinstance(module, nn.Embedding) and arguments and isinstance(arguments[0], Tensor):
            self.embedded = arguments[0]

    def _begin(self, frame: Frame) -> Frame:
        if not self._outer or frame.module is self.model or self._outer & {"", frame.name}:
            self.pass_index += 1
            cached = _cached((*frame.arguments, *frame.keywords.values()))
            self.root = frame._replace(number=self.pass_index, cached=cached)
            self._outer = set()
            self._runs.clear()
        self._outer.add(frame.name)
        return self.root if self.root is not None and self.root[:2] == frame[:2] else frame

    def _leave(self, module: nn.Module) -> None:
        if threading.get_ident() != self._thread:
            return
        if self.stack and self.stack[-1].module is module:
            self.stack.pop()
        # another hook may have raised before this module was pushed
        elif any(frame.module is module for frame in self.stack):
            while self.stack.pop().module is not module:
                pass


class _Entering(Hook):
    """Tells that a module is called; a copy of one is another model."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, keywords: Any = None) -> None:
        name = self.names.get(id(module))
        if self.running and name is not None and not is_dynamo_compiling():
            self.running._push(name, module, arguments, keywords or {})


class _Leaving(Hook):
    """Tells that a module has ended."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        if self.running and id(module) in self.names and not is_dynamo_compiling():
            self.running._leave(module)


def class_of(module: Any) -> type:
    """The class of a module, of a compiled one that of the module inside."""
    inside = module._modules  # of a scripted module no dict, and without `get`
    return type(inside["_orig_mod"] if "_orig_mod" in inside else module)  # noqa: SIM401


def is_known(module: Any) -> bool:
    """Whether a module is a model of a known package, and no part of one such as an encoder."""
    kind = class_of(module)
    package = kind.__module__.partition(".")[0]
    return package == "heedful" or (package == "transformers" and hasattr(kind, "post_init"))


def _cached(values: tuple) -> int | None:
    """How many tokens the first cache of transformers among these holds; None where none tells."""
    for value in values:
        with suppress(Exception):  # as of a cache that holds states, or a dict that has no such key
            return int(value.get_seq_length())
    return None


def _may_attend(module: nn.Module) -> bool:
    """Whether to watch a module. Of those without modules inside: embeddings, whose ids name
    tokens, but no other layer of torch and no norms; hooks on these take longer than the rest."""
    if module._modules or isinstance(module, nn.Embedding):
        return True
    kind = type(module)
    is_torchs = kind.__module__.startswith("torch.nn.modules.")
    return not is_torchs and not any(part in kind.__name__ for part in WITHOUT_ATTENTION)


def _fused(modules: Modules) -> set[str]:
    """The names of encoder layers of torch, and of all that is in them.

    Of a compiled model none: it runs uncompiled, and torch warns of hooks for all modules there.
    """
    layers = [name for one, name in modules.items() if isinstance(one, nn.TransformerEncoderLayer)]
    if not layers or any("_orig_mod" in name for name in modules.values()):
        return set()
    return {name for name in modules.values() for layer in layers if is_in(name, layer)}
