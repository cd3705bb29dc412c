"""The stack of running modules of a model. Forward hooks push and pop each module.

Leaf layers of torch and leaf norms (but not embeddings) have no hook. A hook on a
`TransformerEncoderLayer` would disable its fused kernel, and scripted modules accept no hooks: for
both kinds, process-wide hooks are used. If a module's `forward` is called directly, no hook runs,
and calls of attention in this `forward` get the name of the enclosing module.
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

_graph_task = torch._C._current_graph_task_id  # the backward pass that runs now; -1 without one
SENSES = ("vision", "visual", "image", "audio", "speech")  # in names of modules that read no text


class Hook:
    """A module hook with which the module can still be copied and saved.

    A copy of the module shares the hook. A hook that is loaded from a file does nothing.

    running: the stack that it updates; None after the end of the recording.
    names: the names of the modules that it watches, by `id(module)`.
    """

    __slots__ = ("names", "running")

    def __init__(self, running: ModuleStack | None = None, names: Mapping[int, str] = {}) -> None:
        self.running, self.names = running, names

    def __call__(self, *arguments: Any) -> None:
        """Do nothing."""

    def disconnect(self) -> None:
        """Release the stack, so that the hook does nothing from now on."""
        self.running, self.names = None, {}

    def __deepcopy__(self, memo: dict) -> Hook:
        return self

    def __reduce__(self) -> tuple:
        return Hook, ()


# Parts of the class names of modules that never attend
WITHOUT_ATTENTION = ("Norm", "Activation", "Rotary")


class Frame(NamedTuple):
    """A running module and its arguments.

    number: for the call that began the pass, the number of the pass; for a model of heedful or
        transformers inside another model, a count of such calls; for any other module, 0.
    run: the index of this call among the module's calls in the pass.
    cached: the number of tokens in the cache among the arguments; None if unknown.
    """

    name: str
    module: nn.Module
    arguments: tuple
    keywords: dict[str, Any]
    number: int = 0
    run: int = 0
    cached: int | None = None


class ModuleStack:
    """A context that tracks the running modules of a model and the number of the pass.

    A pass begins when the caller runs the model, or runs a part again that ran in the current pass.
    Calls in other threads, traced calls and repeated calls for gradient checkpointing are ignored.

    frames: the running modules, outermost first.
    pass_index: the number of the pass, from 0; -1 before the first.
    root: the call that began the pass.
    ran: the names of the modules that were called.
    embedded_ids: the token ids that an `nn.Embedding` looked up last.
    ran_in_other_thread, was_traced: whether the model was called in another thread, or traced.
    """

    def __init__(self, model: nn.Module, modules: Modules) -> None:
        self.model, self.modules = model, modules
        self.is_library_model = is_library_model(model)
        self.frames: list[Frame] = []
        self.pass_index = -1
        self.root: Frame | None = None
        self.ran: set[str] = set()
        self.embedded_ids: Tensor | None = None
        self.ran_in_other_thread = False
        self.was_traced = False
        self._library_calls = 0
        self._runs: Counter[str] = Counter()  # calls of each module in this pass
        self._has_encoder = any("encoder" in name for name in modules.values())
        self._outer: set[str] = set()  # modules that the caller ran in this pass
        self._hooks: tuple[Hook, ...] = ()
        self._handles: list[RemovableHandle] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> ModuleStack:
        self._thread = threading.get_ident()
        # keys are ids, so copies are not watched; self.modules keeps the ids valid
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
        for hook in self._hooks:  # copies of the model share these hooks
            hook.disconnect()
        self._handles.clear()
        self.frames.clear()
        self.embedded_ids = self.root = None
        self._thread = -1  # also ignore hooks on copies of the modules

    @property
    def is_active(self) -> bool:
        """Whether the model runs in this thread, outside the backward pass."""
        runs = bool(self.frames) and _graph_task() == -1
        return runs and threading.get_ident() == self._thread

    @property
    def name(self) -> str:
        """The name of the innermost running module; its class name if it is the model."""
        frame = self.frames[-1]
        return plain_name(frame.name) or class_of(frame.module).__name__

    @property
    def _library_frame(self) -> Frame | None:
        """The outermost running model of heedful or transformers."""
        return next((frame for frame in self.frames if is_library_model(frame.module)), None)

    @property
    def text_frame(self) -> Frame:
        """The call of the outermost model of heedful or transformers, or else `root`."""
        library_frame = None if self.is_library_model else self._library_frame
        return library_frame or self.root or self.frames[0]

    @property
    def in_decoder(self) -> bool:
        """Whether the running module is in the decoder of an encoder–decoder model."""
        return side_of(self.frames[-1].name, self._has_encoder) == "decoder"

    @property
    def reads_text(self) -> bool:
        """Whether the running module is outside the parts for images and sound."""
        parts = self.frames[-1].name.lower().split(".")
        return not any(sense in part for part in parts for sense in SENSES)

    def _push(self, name: str, module: nn.Module, arguments: tuple, keywords: dict) -> None:
        if threading.get_ident() != self._thread:
            # copies that run after the end, and gradient checkpointing, do not count
            self.ran_in_other_thread |= self._thread != -1 and _graph_task() == -1
            return
        if self.frames and module is self.model:
            self.frames.clear()  # Ctrl-C ended its last call, so no hook popped it
        frame = Frame(name, module, arguments, keywords, run=self._runs[name])
        if not self.frames and is_traced((*arguments, *keywords.values())):
            self.was_traced = True
            return
        if not self.frames and _graph_task() == -1:
            frame = self._begin(frame)
        elif not self.is_library_model and is_library_model(module) and self._library_frame is None:
            self._library_calls += 1
            cached = _cached((*arguments, *keywords.values()))
            frame = frame._replace(number=self._library_calls, cached=cached)
        self.ran.add(name)
        self._runs[name] += 1
        self.frames.append(frame)
        if isinstance(module, nn.Embedding) and arguments and isinstance(arguments[0], Tensor):
            self.embedded_ids = arguments[0]

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
        if self.frames and self.frames[-1].module is module:
            self.frames.pop()
        # a module is not on the stack if another hook raised before it was pushed
        elif any(frame.module is module for frame in self.frames):
            while self.frames.pop().module is not module:
                pass


class _Entering(Hook):
    """Pushes a module that is called; copies of the module are ignored."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, keywords: Any = None) -> None:
        name = self.names.get(id(module))
        if self.running and name is not None and not is_dynamo_compiling():
            self.running._push(name, module, arguments, keywords or {})


class _Leaving(Hook):
    """Pops a module whose call has ended."""

    __slots__ = ()

    def __call__(self, module: nn.Module, arguments: tuple, output: Any) -> None:
        if self.running and id(module) in self.names and not is_dynamo_compiling():
            self.running._leave(module)


def class_of(module: Any) -> type:
    """Return the class of a module; of a compiled module, the class of the original."""
    children = module._modules  # in a scripted module, this object has no `get`
    return type(children["_orig_mod"] if "_orig_mod" in children else module)  # noqa: SIM401


def is_library_model(module: Any) -> bool:
    """Whether a module is a module of heedful, or a complete model of transformers."""
    kind = class_of(module)
    package = kind.__module__.partition(".")[0]
    return package == "heedful" or (package == "transformers" and hasattr(kind, "post_init"))


def _cached(values: tuple) -> int | None:
    """Return the number of tokens in the first value that is a cache of transformers; else None."""
    for value in values:
        with suppress(Exception):  # most values lack the method; caches of states raise an error
            return int(value.get_seq_length())
    return None


def _may_attend(module: nn.Module) -> bool:
    """Whether to watch a module. Norms and leaf layers of torch cannot attend; without them there
    are far fewer hooks. An embedding is watched for its token ids."""
    if module._modules or isinstance(module, nn.Embedding):
        return True
    kind = type(module)
    is_torchs = kind.__module__.startswith("torch.nn.modules.")
    return not is_torchs and not any(part in kind.__name__ for part in WITHOUT_ATTENTION)


def _fused(modules: Modules) -> set[str]:
    """Return the names of each `nn.TransformerEncoderLayer` and all its submodules; none if the
    model is compiled, as torch would warn of process-wide hooks."""
    kind = nn.TransformerEncoderLayer
    layers = [name for layer, name in modules.items() if isinstance(layer, kind)]
    if not layers or any("_orig_mod" in name for name in modules.values()):
        return set()
    return {name for name in modules.values() for layer in layers if is_in(name, layer)}
