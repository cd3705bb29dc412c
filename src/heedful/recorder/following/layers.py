"""Lets plain layers of torch's own run without the mode, and notes what axes their output has.

A mode costs each operation some microseconds, and most operations of a transformer are those of
linear layers and norms, which hold no attention (`plain_layers.py`). So the mode is taken off while
such a layer runs, and its output is noted as that of one operation: of a product with parameters,
or of a norm. A layer that somebody has changed, by a hook or a `forward` of its own or weights of
another class, is followed operation by operation; so is one that is given scores or weights.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as of_all
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from heedful.recorder.following.axis_rules import is_tensor
from heedful.recorder.following.natures import PLAIN
from heedful.recorder.following.operation_kinds import Kind, kind_of
from heedful.recorder.following.operations import Operations
from heedful.recorder.hooks import Hook, Hooks
from heedful.recorder.plain_layers import parts_of
from heedful.recorder.running import Modules


class _Part(NamedTuple):
    """A layer that runs as a plain one is called, and how many hooks it has: ours."""

    layer: nn.Module
    before: int
    after: int

    @property
    def is_as_torch_has_it(self) -> bool:
        """Whether nobody has changed what it does."""
        layer = self.layer
        if len(layer._forward_pre_hooks) != self.before or len(layer._forward_hooks) != self.after:
            return False
        weights = layer._parameters.values()
        return "forward" not in layer.__dict__ and all(w is None or is_tensor(w) for w in weights)


class _Plain(NamedTuple):
    """A plain layer: the operation that it comes to, all that runs as it is called, its parts."""

    kind: Kind
    parts: list[_Part]
    inside: list[nn.Module | None]

    def is_as_torch_has_it(self, layer: nn.Module) -> bool:
        """Whether nobody has changed what it does, or its parts."""
        are_same = list(layer._modules.values()) == self.inside
        return are_same and all(one.is_as_torch_has_it for one in self.parts)


class Layers:
    """Takes a mode off while a plain layer runs.

    Args:
        mode: the mode.
    """

    def __init__(self, mode: Operations) -> None:
        self._mode = mode
        self._known: dict[int, _Plain] = {}  # by id() of a layer
        self._running: nn.Module | None = None  # the one that runs without the mode
        self._thread = -1  # in which it does

    @contextmanager
    def watched(self, modules: Modules) -> Iterator[None]:
        """While entered, is told by hooks of the end of each plain layer."""
        hooks, ended = Hooks(), _Ended(self)
        # of a layer without a hook, as one of an encoder, it is not told that it begins
        told = [one for _, one in modules if one._forward_pre_hooks]
        plain = [(one, parts) for one in told if (parts := parts_of(one))]
        inside = {id(part) for one, parts in plain for part in parts if part is not one}
        plain = [(one, parts) for one, parts in plain if id(one) not in inside]
        for layer, _ in plain:
            hooks.after(layer, ended)
        self._known = {id(layer): _plain(layer, parts) for layer, parts in plain}
        try:
            yield
        finally:
            hooks.remove()
            self.resume()
            self._known = {}

    def begins(self, layer: nn.Module, given: tuple) -> None:
        """Take the mode off if a layer is a plain one that nobody has changed."""
        if self._running is not None:
            if any(one is layer for one in self._running._modules.values()):
                return  # a part of the one that runs
            self.resume()
        known = self._known.get(id(layer))
        if known is None or len(given) != 1 or not self._is_plain_for(given[0]):
            return
        if known.is_as_torch_has_it(layer):
            self._running, self._thread = layer, threading.get_ident()
            _pop_mode()

    def _is_plain_for(self, given: Any) -> bool:
        """Whether nothing is to be followed of what a plain layer does with a tensor."""
        mode = self._mode
        if not is_tensor(given) or _get_current_dispatch_mode() is not mode or not mode.here():
            return False
        if of_all._global_forward_hooks or of_all._global_forward_pre_hooks or _others_see():
            return False
        kept = mode.traced.of(given)
        return kept.role is None and kept.storage.nature is PLAIN

    def ended(self, layer: nn.Module, given: Any, made: Any) -> None:
        """Put the mode on again, and note what a layer has made."""
        if self._running is not layer or threading.get_ident() != self._thread:
            return
        self.resume()
        if is_tensor(made):  # else it has raised
            self._mode.layer(self._known[id(layer)].kind, given, made)

    def resume(self) -> None:
        """Put the mode on again, also where Ctrl-C has ended a layer."""
        if self._running is not None:
            self._running = None
            _push_mode(self._mode)


def _others_see() -> bool:
    """Whether torch.func or a function mode may do something else where a layer calls torch."""
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return is_transformed or torch._C._len_torch_function_stack() > 0


class _Ended(Hook):
    """Tells that a plain layer has ended."""

    __slots__ = ()

    def __call__(self, layer: nn.Module, arguments: tuple, made: Any) -> None:
        if self.teller is not None and arguments:
            self.teller.ended(layer, arguments[0], made)


def _plain(layer: nn.Module, parts: list[nn.Module]) -> _Plain:
    every = [layer] if layer is parts[0] else [layer, *parts]
    of_each = [_Part(one, len(one._forward_pre_hooks), len(one._forward_hooks)) for one in every]
    is_linear = any(type(one) is nn.Linear for one in parts)
    return _Plain(_linear() if is_linear else _norm(), of_each, list(layer._modules.values()))


@functools.cache
def _linear() -> Kind:
    return kind_of(torch.ops.aten.linear.default)


@functools.cache
def _norm() -> Kind:
    return kind_of(torch.ops.aten.layer_norm.default)
