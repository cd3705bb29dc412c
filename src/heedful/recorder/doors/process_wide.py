"""A process-wide context for several threads: the first enters it, the last exits it.

Threads that patched the process independently might undo the patches in the wrong order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ProcessWide:
    """Keeps the context that `make` returns entered while any thread is inside."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self.make = make
        self.threads = 0
        self._lock, self._stack = threading.Lock(), ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the shared context unless another thread is inside already."""
        with self._lock:
            if not self.threads:
                self._stack.enter_context(self.make())
            self.threads += 1
        try:
            yield
        finally:
            with self._lock:
                self.threads -= 1
                if not self.threads:
                    self._stack.close()
