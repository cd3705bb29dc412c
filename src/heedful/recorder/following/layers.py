"""Lets plain layers of torch's own run without the mode, and notes what axes their output has.

A mode costs each operation some microseconds, and many operations of a transformer are those of
its linear layers, which hold no attention (`plain_layers.py`). So the mode is taken off while such
a layer runs, and its output is noted as that of one product with parameters. A layer that somebody
has changed, by a hook or a `forward` of its own or weights of another class, is followed operation
by operation; so is one that is given scores or weights.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from torch._C import (
    _get_dispatch_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
)
from torch._C._functorch import peek_interpreter_stack as _peek_interpreter_stack
from torch.nn.modules import module as of_all

from heedful.recorder.following.axis_rules import DENSE, is_tensor
from heedful.recorder.following.natures import PLAIN
from heedful.recorder.following.operations import Operations
from heedful.recorder.following.strides import Storage, View, place
from heedful.recorder.hooks import Hook, Hooks
from heedful.recorder.plain_layers import parts_of
from heedful.recorder.running import Modules

PLACELESS = View(Storage(list), (), ())


class _Plain(NamedTuple):
    """A plain layer, as it was when it was first looked at.

    inside: the layers in it, if it is a `Sequential`.
    parts: all that runs as it is called, each with how many hooks it had: ours.
    """

    inside: list[nn.Module | None]
    parts: list[tuple[nn.Module, int, int]]

    def is_as_it_was(self, layer: nn.Module) -> bool:
        """Whether nobody has changed since what it does, or what its parts do."""
        if list(layer._modules.values()) != self.inside:
            return False
        for part, before, after in self.parts:
            if len(part._forward_pre_hooks) != before or len(part._forward_hooks) != after:
                return False
            if "forward" in part.__dict__:
                return False
            for weight in part._parameters.values():
                if weight is not None and type(weight) not in DENSE:
                    return False
        return True


class Layers:
    """Takes a mode off while a plain layer runs.

    Args:
        mode: the mode.
    """

    def __init__(self, mode: Operations) -> None:
        self._mode = mode
        self._known: dict[int, _Plain] = {}  # by id() of a layer
        self._running: nn.Module | None = None  # the one that runs without the mode
        self._given = PLACELESS  # what it was given
        self._thread = -1  # in which it runs

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
        if known is None or len(given) != 1 or not is_tensor(given[0]):
            return
        if not self._may_be_off() or not known.is_as_it_was(layer):
            return
        kept = self._mode.traced.of(given[0])
        if kept.role is None and kept.storage.nature is PLAIN:
            self._running, self._thread = layer, threading.get_ident()
            self._given = View(kept.storage, *place(given[0]))
            _pop_torch_dispatch_stack(None)

    def _may_be_off(self) -> bool:
        """Whether nothing but the mode sees what a plain layer does."""
        above = _len_torch_dispatch_stack() - 1
        if above < 0 or _get_dispatch_stack_at(above) is not self._mode or not self._mode.here():
            return False
        # torch.func and a function mode may do something else where a layer calls torch
        is_changed = _peek_interpreter_stack() is not None or _len_torch_function_stack() > 0
        return not (is_changed or of_all._global_forward_hooks or of_all._global_forward_pre_hooks)

    def ended(self, layer: nn.Module, made: Any) -> None:
        """Put the mode on again, and note what a layer has made."""
        if self._running is not layer or threading.get_ident() != self._thread:
            return
        given = self._given
        self.resume()
        if is_tensor(made):  # else it has raised
            self._mode.traced.projected(given, made)

    def resume(self) -> None:
        """Put the mode on again, also where Ctrl-C has ended a layer."""
        if self._running is not None:
            self._running, self._given = None, PLACELESS
            _push_on_torch_dispatch_stack(self._mode)


class _Ended(Hook):
    """Tells that a plain layer has ended."""

    __slots__ = ()

    def __call__(self, layer: nn.Module, arguments: tuple, made: Any) -> None:
        if self.teller is not None:
            self.teller.ended(layer, made)


def _plain(layer: nn.Module, parts: list[nn.Module]) -> _Plain:
    every = [layer] if layer is parts[0] else [layer, *parts]
    hooks = [(one, len(one._forward_pre_hooks), len(one._forward_hooks)) for one in every]
    return _Plain(list(layer._modules.values()), hooks)
