"""Defers Ctrl-C for the milliseconds in which a recording begins or ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep SIGINT until the end of the block, and then handle it as it would have been.

    Python runs signal handlers in the main thread alone: in others nothing has to be deferred.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple] = []
    signal.signal(signal.SIGINT, lambda *signaled: received.append(signaled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])
