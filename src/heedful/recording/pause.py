"""Marks what a recorder computes itself while a model runs, so that it is not recorded."""

from __future__ import annotations

import threading


class _Thread(threading.local):
    is_on = False


thread = _Thread()  # `Operations` sets `is_on` itself: a context for each operation takes too long


class computing:  # noqa: N801 (a context, read as a word)
    """A context in which no recorder of this thread looks at what runs."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = thread.is_on
        thread.is_on = True

    def __exit__(self, *error: object) -> None:
        thread.is_on = self.before
