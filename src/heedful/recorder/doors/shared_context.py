"""Shares one context among threads: the first to come enters it, the last to go leaves it.

Two threads that patched the process each by itself might undo that in the wrong order, and then a
patch would stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ProcessWide:
    """Keeps the context that `make` makes entered while any thread is inside."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self.make = make
        self.number = 0
        self._lock, self._stack = threading.Lock(), ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the shared context, if no thread is in it yet, and be inside."""
        with self._lock:
            if not self.number:
                self._stack.enter_context(self.make())
            self.number += 1
        try:
            yield
        finally:
            with self._lock:
                self.number -= 1
                if not self.number:
                    self._stack.close()
