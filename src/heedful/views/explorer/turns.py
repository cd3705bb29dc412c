"""Whose turn it is: the newest question first, and none that nobody waits for any more.

A page that is panned asks for tiles faster than they are computed; what it asked for last is what
it shows now.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from heedful.errors import RunError

MOST = 200  # questions that may wait


class Turns:
    """A stack of questions, and threads that answer them. `idle` is called where none waits."""

    def __init__(self, idle: Callable[[], bool] = lambda: False, threads: int = 1) -> None:
        self._waiting: list[tuple[Callable[[], Any], Future]] = []
        self._changed = threading.Condition()
        self._idle, self._ended = idle, False
        for _ in range(threads):
            threading.Thread(target=self._answer, daemon=True).start()

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def ask(self, work: Callable[[], Any]) -> Future:
        """A future of what the work returns; cancelled, it is not begun."""
        future: Future = Future()
        with self._changed:
            if len(self._waiting) >= MOST:
                _, oldest = self._waiting.pop(0)
                oldest.set_exception(_too_many())
            self._waiting.append((work, future))
            self._changed.notify()
        return future

    async def answered(self, work: Callable[[], Any]) -> Any:
        """As `ask`, awaited; the work is not begun where the one who waits has gone."""
        return await asyncio.wrap_future(self.ask(work))

    def wake(self) -> None:
        """Something is to be done while nobody asks."""
        with self._changed:
            self._changed.notify()

    def end(self) -> None:
        """Answer nothing more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _answer(self) -> None:
        while True:
            with self._changed:
                if self._ended:
                    return
                work, future = self._waiting.pop() if self._waiting else (None, None)
            if work is None or future is None:
                if not self._idle():
                    with self._changed:
                        self._changed.wait_for(lambda: self._waiting or self._ended, timeout=0.5)
            elif future.set_running_or_notify_cancel():
                _fulfil(future, work)


def _fulfil(future: Future, work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def _too_many() -> RunError:
    return RunError(f"more than {MOST} questions at once", remedy="ask again in a moment")
