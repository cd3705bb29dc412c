"""Hooks that tell a recorder what a module does, and that a model can be copied and saved with.

A copy of a model shares them, so that it tells nothing once the recording has ended. In a file they
are hooks that do nothing, as a recorder is nothing that can be saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

NO_NAMES: Mapping[int, str] = MappingProxyType({})


class Hook:
    """A hook of a module that does nothing; what one does is its class's `__call__`.

    teller: what it tells of calls; None once it is silent.
    names: of the modules that it is for, by their `id`.
    """

    __slots__ = ("names", "teller")

    def __init__(self, teller: Any = None, names: Mapping[int, str] = NO_NAMES) -> None:
        self.teller, self.names = teller, names

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
        self._hooks: set[Hook] = set()
        self._homes: list[dict[int, Any]] = []  # tables of modules in which the number stands
        self._handles: list[Any] = []

    def before(self, module: nn.Module, hook: Hook, *, with_kwargs: bool = False) -> None:
        """Call a hook before a module's `forward`."""
        homes = module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs
        self._put(hook, *homes, with_kwargs)

    def after(self, module: nn.Module, hook: Hook, *, with_kwargs: bool = False) -> None:
        """Call a hook after a module's `forward`, also where that has raised an error."""
        self._put(hook, module._forward_hooks, module._forward_hooks_with_kwargs, with_kwargs)
        always = module._forward_hooks_always_called
        always[self._key] = True
        self._homes.append(always)

    def of_all(self, before: Hook, after: Hook) -> None:
        """Call hooks before and after the `forward` of each module of the process."""
        self._hooks |= {before, after}
        self._handles.append(register_module_forward_pre_hook(before))
        self._handles.append(register_module_forward_hook(after, always_call=True))

    def _put(
        self, hook: Hook, home: dict[int, Any], of_keywords: dict[int, Any], with_kwargs: bool
    ) -> None:
        home[self._key] = hook
        self._homes.append(home)
        if with_kwargs:
            of_keywords[self._key] = True
            self._homes.append(of_keywords)
        else:  # a model that was saved while it was recorded may have the same number there
            of_keywords.pop(self._key, None)
        self._hooks.add(hook)

    def remove(self) -> None:
        """Remove all of them from their modules, and silence those that copies have."""
        for handle in self._handles:
            handle.remove()
        for home in self._homes:
            home.pop(self._key, None)
        for hook in self._hooks:
            hook.teller, hook.names = None, NO_NAMES
        self._handles.clear()
        self._homes.clear()
        self._hooks.clear()
