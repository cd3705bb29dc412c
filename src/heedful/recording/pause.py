"""A context that pauses recording, because the recorder's own computations use attention too."""

from __future__ import annotations

import threading


class _Thread(threading.local):
    is_paused = False


thread = _Thread()  # the tape sets `is_paused` itself: a context per operation takes too long


class recording_paused:  # noqa: N801 (used as a context manager)
    """A context in which nothing that this thread computes is recorded."""

    __slots__ = ("was_paused",)

    def __enter__(self) -> None:
        self.was_paused = thread.is_paused
        thread.is_paused = True

    def __exit__(self, *error: object) -> None:
        thread.is_paused = self.was_paused
