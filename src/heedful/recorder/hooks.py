"""Hooks that tell a recorder what a module does, and that a model can be copied and saved with.

A copy of a model shares them, so that it tells nothing once the recording has ended. In a file they
are hooks that do nothing, as a recorder is nothing that can be saved.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


class Hook:
    """A hook of a module that does nothing; what one does is its class's `__call__`.

    teller: what it tells of calls; None once it is silent.
    """

    __slots__ = ("teller",)

    def __init__(self, teller: Any = None) -> None:
        self.teller = teller

    def __call__(self, *given: Any) -> None:
        """Do nothing."""

    def __deepcopy__(self, memo: dict) -> Hook:
        return self

    def __reduce__(self) -> tuple:
        return Hook, ()


# torch numbers hooks from 0 on
_keys = itertools.count(-1, -1)


class Hooks:
    """The hooks of a recording, which are removed and silenced together.

    They are put where torch's own methods put them, under one number: those make an object with
    weak references for each hook, which for a model of 50 modules takes as long as some layers.
    """

    def __init__(self) -> None:
        self._key = next(_keys)
        self._hooks: list[Hook] = []
        self._homes: list[dict[int, Any]] = []  # tables of modules in which the number stands
        self._handles: list[Any] = []

    def before(self, module: nn.Module, hook: Hook, *, with_kwargs: bool = False) -> None:
        """Call a hook before a module's `forward`."""
        self._put(module._forward_pre_hooks, hook)
        self._tell_keywords(module._forward_pre_hooks_with_kwargs, with_kwargs)
        self._hooks.append(hook)

    def after(self, module: nn.Module, hook: Hook, *, with_kwargs: bool = False) -> None:
        """Call a hook after a module's `forward`, also where that has raised an error."""
        self._put(module._forward_hooks, hook)
        self._put(module._forward_hooks_always_called, True)
        self._tell_keywords(module._forward_hooks_with_kwargs, with_kwargs)
        self._hooks.append(hook)

    def before_all(self, hook: Hook) -> None:
        """Call a hook before the `forward` of each module of the process."""
        self._hooks.append(hook)
        self._handles.append(register_module_forward_pre_hook(hook))

    def _tell_keywords(self, home: dict[int, Any], with_kwargs: bool) -> None:
        if with_kwargs:
            self._put(home, True)
        else:  # a model that was saved while it was recorded may have the same number there
            home.pop(self._key, None)

    def _put(self, home: dict[int, Any], value: Any) -> None:
        home[self._key] = value
        self._homes.append(home)

    def remove(self) -> None:
        """Remove all of them from their modules, and silence those that copies have."""
        for handle in self._handles:
            handle.remove()
        for home in self._homes:
            home.pop(self._key, None)
        for hook in self._hooks:
            hook.teller = None
        self._handles.clear()
        self._homes.clear()
        self._hooks.clear()
