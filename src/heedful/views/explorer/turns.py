"""Whose turn it is: the newest question first, and none that nobody waits for any more.

A page that is panned asks for tiles faster than they are computed; what it asked for last is what
it shows now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from heedful.errors import RunError
from heedful.views.explorer.background import caught

MOST = 200  # questions that may wait
PAUSE = 0.5  # seconds after which somebody looks again whether there is something to do
REST = 0.05  # seconds without a question before idle work begins: they come in bursts

Idle = Callable[[Callable[[], bool]], bool]


def nothing(going_on: Callable[[], bool]) -> bool:
    """No work, ever."""
    return False


class Turns:
    """A stack of questions, and a thread that answers them.

    Args:
        idle: is called where no question waits, and again while it returns True. It is given a
            function that says whether it may go on.
        watched: the same for work that somebody watches: it comes before `idle`, and at once.
        rest: seconds after a question before `idle` is called.
    """

    def __init__(
        self, idle: Idle = nothing, rest: float = REST, *, watched: Idle = nothing
    ) -> None:
        self._waiting: list[tuple[Callable[[], Any], Future]] = []
        self._changed = threading.Condition()
        self._idle, self._watched, self._rest, self._ended = idle, watched, rest, False
        self._thread = threading.Thread(target=self._answer, daemon=True, name="heedful-explorer")
        self._thread.start()

    def ask(self, work: Callable[[], Any]) -> Future:
        """A future of what the work returns, or of a `HeedfulError`; cancelled, it is not begun.

        Where too many wait, the one that has waited longest is refused.
        """
        future: Future = Future()
        with self._changed:
            if self._ended:
                _refuse(future, "the explorer has ended")
                return future
            self._waiting = [one for one in self._waiting if not one[1].cancelled()]
            self._waiting.append((work, future))
            refused = self._waiting[:-MOST]
            self._waiting = self._waiting[-MOST:]
            self._changed.notify()
        for _, oldest in refused:
            _refuse(oldest, f"more than {MOST} questions at once", "ask again in a moment")
        return future

    def end(self, seconds: float = 5.0) -> None:
        """Answer nothing more: refuse who waits, and wait for the step that is being computed."""
        with self._changed:
            self._ended = True
            refused, self._waiting = self._waiting, []
            self._changed.notify_all()
        for _, future in refused:
            _refuse(future, "the explorer has ended")
        self._thread.join(seconds)

    def _going_on(self) -> bool:
        return not self._waiting and not self._ended

    def _answer(self) -> None:
        while True:
            with self._changed:
                if self._ended:
                    return
                asked = self._waiting.pop() if self._waiting else None
            if asked is not None:
                _fulfil(*asked)
                if not self._watched(self._going_on):
                    self._await(self._rest)
            elif self._watched(self._going_on):
                continue
            elif not self._idle(self._going_on):
                self._await(PAUSE)

    def _await(self, seconds: float) -> None:
        """Wait for a question or the end, so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._going_on(), seconds)


def _fulfil(work: Callable[[], Any], future: Future) -> None:
    if not future.set_running_or_notify_cancel():
        return
    with caught(future.set_exception):
        future.set_result(work())


def _refuse(future: Future, came: str, remedy: str | None = None) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(RefusedError(came, remedy=remedy))


class RefusedError(RunError):
    """A question that is not answered, though nothing is wrong with it."""
