"""A context for the whole process: the first thread enters it, and the last thread exits it.

If each thread patched the process separately, patches might be undone in the wrong order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ProcessWide:
    """Keeps a context, the result of `make_context`, open while any thread is inside."""

    def __init__(self, make_context: Callable[[], AbstractContextManager[object]]) -> None:
        self.make_context = make_context
        self.threads = 0
        self._lock, self._stack = threading.Lock(), ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the shared context, unless another thread has entered it."""
        with self._lock:
            if not self.threads:
                self._stack.enter_context(self.make_context())
            self.threads += 1
        try:
            yield
        finally:
            with self._lock:
                self.threads -= 1
                if not self.threads:
                    self._stack.close()
