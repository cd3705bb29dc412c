"""Marks what a recorder computes itself while a model runs, so that it is not recorded."""

from __future__ import annotations

import threading


class _Thread(threading.local):
    is_on = False


_thread = _Thread()


class computing:  # noqa: N801 (a context, read as a word)
    """A context in which no recorder of this thread looks at what runs."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = _thread.is_on
        _thread.is_on = True

    def __exit__(self, *told: object) -> None:
        _thread.is_on = self.before


def is_computing() -> bool:
    """Whether a recorder's own computation is running in this thread."""
    return _thread.is_on
