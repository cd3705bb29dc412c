"""Hooks that tell a recorder what a module does, and that a model can be copied and saved with.

A copy of a model shares them, so that it tells nothing once the recording has ended. In a file they
are hooks that do nothing, as a recorder is nothing that can be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A function as a hook of a module, until it is silenced."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell

    def __call__(self, *given: Any) -> None:
        """Tell it of a call."""
        self._tell(*given)

    def silence(self) -> None:
        """Tell nothing any more, and hold no recorder."""
        self._tell = _nothing

    def __deepcopy__(self, memo: dict) -> Hook:
        return self

    def __reduce__(self) -> tuple:
        return Hook, (_nothing,)


class Hooks:
    """The hooks of a recording, which are removed and silenced together."""

    def __init__(self) -> None:
        self._hooks: list[Hook] = []
        self._handles: list[Any] = []

    def add(self, register: Callable[..., Any], tell: Callable[..., None], **how: Any) -> None:
        """Register a function as a hook, by a method of the module that takes it."""
        hook = Hook(tell)
        self._hooks.append(hook)
        self._handles.append(register(hook, **how))

    def remove(self) -> None:
        """Remove all of them from their modules, and silence those that copies have."""
        for handle in self._handles:
            handle.remove()
        for hook in self._hooks:
            hook.silence()
        self._handles.clear()
        self._hooks.clear()


def _nothing(*given: Any) -> None:
    pass
