"""Hooks that tell a recorder what a module does, and that a model can be copied and saved with.

A copy of a model shares them, so that it tells nothing once the recording has ended. In a file they
are hooks that do nothing, as a recorder is nothing that can be saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Hook:
    """A hook of a module that does nothing; what one does is its class's `__call__`.

    teller: what it tells of calls; None once it is silent.
    names: of the modules that it is for, by their `id`.
    """

    __slots__ = ("names", "teller")

    def __init__(self, teller: Any = None, names: Mapping[int, str] | None = None) -> None:
        self.teller, self.names = teller, names or {}

    def __call__(self, *given: Any) -> None:
        """Do nothing."""

    def silence(self) -> None:
        """Tell nothing any more, nor hold what it told of."""
        self.teller, self.names = None, {}

    def __deepcopy__(self, memo: dict) -> Hook:
        return self

    def __reduce__(self) -> tuple:
        return Hook, ()
