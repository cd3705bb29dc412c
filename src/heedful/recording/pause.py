"""A context that pauses recording, for computations of the recorder itself."""

from __future__ import annotations

import threading


class _Thread(threading.local):
    is_paused = False


thread = _Thread()  # the tape sets `is_paused` itself: a context per operation takes too long


class recording_paused:  # noqa: N801 (used as a context manager)
    """A context in which no recorder of this thread records anything."""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = thread.is_paused
        thread.is_paused = True

    def __exit__(self, *error: object) -> None:
        thread.is_paused = self.before
