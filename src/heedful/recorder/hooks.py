"""Hooks that tell a recorder what a module does, and that a model can be copied and saved with.

A copy of a model shares them, so that it tells nothing once the recording has ended. In a file they
are hooks that do nothing, as a recorder is nothing that can be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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


class Hooks:
    """The hooks of a recording, which are removed and silenced together."""

    def __init__(self) -> None:
        self._hooks: list[Hook] = []
        self._handles: list[Any] = []

    def add(self, register: Callable[..., Any], hook: Hook, **how: Any) -> None:
        """Register a hook by the method of a module that takes it."""
        self._hooks.append(hook)
        self._handles.append(register(hook, **how))

    def remove(self) -> None:
        """Remove all of them from their modules, and silence those that copies have."""
        for handle in self._handles:
            handle.remove()
        for hook in self._hooks:
            hook.teller = None
        self._handles.clear()
        self._hooks.clear()
