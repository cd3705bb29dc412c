"""Lets plain layers of torch's own run without the mode, and notes what axes their output has.

A mode costs each operation some microseconds, and many operations of a transformer are those of
its linear layers and norms, which hold no attention (`plain_layers.py`). So the mode is taken off
while such a layer runs, and its output is noted as that of one product with parameters, or of one
norm. A layer that somebody has changed, by a hook or a `forward` of its own, is followed operation
by operation; so is a linear one that multiplies with something else than a parameter, and any that
is given scores or weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import (
    _get_dispatch_stack_at,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
)
from torch._C._functorch import peek_interpreter_stack as _peek_interpreter_stack
from torch.nn.modules import module as of_all

from heedful.recorder.following.axis_rules import is_tensor
from heedful.recorder.following.natures import PLAIN
from heedful.recorder.following.operation_kinds import Kind, kind_of
from heedful.recorder.following.operations import Operations
from heedful.recorder.following.storages import Traced
from heedful.recorder.following.strides import Storage, View, place
from heedful.recorder.hooks import Hook, Hooks
from heedful.recorder.plain_layers import KINDS, parts_of
from heedful.recorder.running import Modules

PLACELESS = View(Storage(list), (), ())
LINEAR = kind_of(torch.ops.aten.linear.default)
NORM = kind_of(torch.ops.aten.layer_norm.default)


class _Plain(NamedTuple):
    """A plain layer: all that runs as it is called.

    called: the modules that are called then. state: what was to be seen of them (`_state`) when it
    was first looked at. inside: the modules in it, if it is several. linear: the linear ones. kind:
    of the operation that makes the axes of its output.
    """

    called: tuple[nn.Module, ...]
    state: tuple
    inside: tuple[nn.Module | None, ...]
    linear: tuple[nn.Module, ...]
    kind: Kind

    def is_as_it_was(self, layer: nn.Module) -> bool:
        """Whether nobody has changed since what it does, or what its parts do."""
        is_whole = tuple(layer._modules.values()) == self.inside
        return is_whole and _state(self.called) == self.state


def _state(modules: tuple[nn.Module, ...]) -> tuple:
    """Of each of some modules its class's `forward`, whether it has its own, and its hooks."""
    found: list[Any] = []
    for one in modules:
        found += type(one).forward, "forward" in one.__dict__
        found += len(one._forward_pre_hooks), len(one._forward_hooks)
    return tuple(found)


class Layers:
    """Takes a mode off while a plain layer runs.

    Args:
        mode: the mode.
    """

    def __init__(self, mode: Operations) -> None:
        self._mode = mode
        self._known: dict[int, _Plain] = {}  # by id() of a layer
        self._running: nn.Module | None = None  # the one that runs without the mode
        self._inside: tuple[nn.Module | None, ...] = ()  # its parts
        self._given, self._kind = PLACELESS, LINEAR  # what it was given, and its kind
        self._thread = -1  # in which it runs

    @contextmanager
    def watched(self, modules: Modules) -> Iterator[None]:
        """While entered, is told by hooks of the end of each plain layer."""
        hooks, ended = Hooks(), _Ended(self)
        # of a layer without a hook, as one of an encoder, it is not told that it begins
        told = [one for one in modules if type(one) in KINDS and one._forward_pre_hooks]
        plain = [(one, parts) for one in told if (parts := parts_of(one))]
        inside = {id(part) for one, parts in plain for part in parts if part is not one}
        plain = [(one, parts) for one, parts in plain if id(one) not in inside]
        for layer, _ in plain:
            hooks.after(layer, ended)
        self._known = {id(layer): _plain(layer, parts) for layer, parts in plain}
        del told, plain  # this stands still while the model runs
        try:
            yield
        finally:
            hooks.remove()
            self.resume()
            self._known, self._inside = {}, ()

    def begins(self, layer: nn.Module, given: tuple) -> None:
        """Take the mode off if a layer is a plain one that nobody has changed."""
        if self._running is not None:
            if layer in self._inside:
                return  # a part of the one that runs
            self.resume()
        known = self._known.get(id(layer))
        if known is None or len(given) != 1 or not is_tensor(given[0]):
            return
        if not self._may_be_off() or not known.is_as_it_was(layer):
            return
        self._mode.followed(self._take_off, layer, known, given[0])

    def _take_off(self, layer: nn.Module, known: _Plain, given: Tensor) -> None:
        """Take the mode off where parameters are all that a tensor without a role is to meet."""
        traced = self._mode.traced
        kept = traced.of(given)
        if kept.role is not None or kept.storage.nature is not PLAIN:
            return
        if known.kind is NORM and not given.is_contiguous():
            return  # where input and output stand alike, the weight has no say in the axes
        for one in known.linear:
            if not _has_parameters(one, traced):
                return
        self._given, self._kind = View(kept.storage, *place(given)), known.kind
        self._running, self._inside = layer, known.inside
        self._thread = threading.get_ident()
        _pop_torch_dispatch_stack(None)

    def _may_be_off(self) -> bool:
        """Whether nothing but the mode sees what a plain layer does."""
        above = _len_torch_dispatch_stack() - 1
        if above < 0 or _get_dispatch_stack_at(above) is not self._mode or not self._mode.here():
            return False
        # torch.func and a function mode may do something else where a layer calls torch, and of
        # copies that autocast makes of weights it is to be seen what they are of
        is_changed = _peek_interpreter_stack() is not None or _len_torch_function_stack() > 0
        is_changed = is_changed or _is_any_autocast_enabled()
        return not (is_changed or of_all._global_forward_hooks or of_all._global_forward_pre_hooks)

    def ended(self, layer: nn.Module, made: Any) -> None:
        """Put the mode on again, and note what a layer has made."""
        if self._running is not layer or threading.get_ident() != self._thread:
            return
        given, kind = self._given, self._kind
        self.resume()
        if is_tensor(made):  # else it has raised, or gives a tensor of a class
            self._mode.followed(self._mode.traced.made_by, kind, given, made)

    def resume(self) -> None:
        """Put the mode on again, also where Ctrl-C has ended a layer, or came between two lines."""
        if self._running is None:
            return
        for at in range(_len_torch_dispatch_stack()):
            if _get_dispatch_stack_at(at) is self._mode:
                break
        else:
            _push_on_torch_dispatch_stack(self._mode)
        self._running = None
        self._given = PLACELESS


def _has_parameters(layer: nn.Module, traced: Traced) -> bool:
    """Whether a linear layer multiplies with a parameter: it may have been given another tensor."""
    weight = layer._parameters.get("weight")
    return is_tensor(weight) and "weight" not in layer.__dict__ and traced.is_parameter(weight)


class _Ended(Hook):
    """Tells that a plain layer has ended."""

    __slots__ = ()

    def __call__(self, layer: nn.Module, arguments: tuple, made: Any) -> None:
        if self.teller is not None:
            self.teller.ended(layer, made)


def _plain(layer: nn.Module, parts: list[nn.Module]) -> _Plain:
    called = (layer,) if layer is parts[0] else (layer, *parts)
    linear = tuple([one for one in parts if type(one) is nn.Linear])
    kind = LINEAR if linear else NORM
    return _Plain(called, _state(called), tuple(layer._modules.values()), linear, kind)
