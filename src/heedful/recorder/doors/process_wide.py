"""A context that several threads may be in at once: the first enters it, the last leaves it.

What is patched for a whole process would else be put back in the wrong order, and stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class ProcessWide:
    """Enters what `make` makes while anybody is inside.

    >>> from contextlib import nullcontext
    >>> inside = ProcessWide(nullcontext)
    >>> with inside.entered(), inside.entered():
    ...     inside.number
    2
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self.make = make
        self.number = 0
        self._lock = threading.Lock()
        self._context: AbstractContextManager[object] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside."""
        with self._lock:
            if self._context is None:
                context = self.make()
                context.__enter__()
                self._context = context
            self.number += 1
        try:
            yield
        finally:
            with self._lock:
                self.number -= 1
                if not self.number:
                    context, self._context = self._context, None
                    context.__exit__(None, None, None)
