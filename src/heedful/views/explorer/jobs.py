"""Answers questions in turn, and works step by step where none waits, so that none waits long.

The newest question comes first: a page that is panned asks for tiles faster than they are computed,
and what it asked for last is what it shows now. One that nobody waits for any more is not begun.

Of the work, what a map shows comes first, the newest wish first of all; heads that are only to be
known come after it, in the order in which they were asked for. A job that fails says why and is
left; what it was to make exact stays sampled.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from heedful.errors import HeedfulError, RunError

PAUSE = 0.5  # seconds after which somebody looks again whether there is something to do
REST = 0.05  # seconds without a question before idle work begins: they come in bursts

Idle = Callable[[Callable[[], bool]], bool]


class FaultError(RunError):
    """What a job raised that is none of heedful's errors, in one line."""


@contextmanager
def caught(tell: Callable[[HeedfulError], Any]) -> Iterator[None]:
    """Tell what a job in a thread of ours raises; nothing it raises ends the thread.

    A library in Rust, as tokenizers is, panics with a `BaseException` that is no `Exception`, and
    `StopIteration` never arrives through an event loop: all but our own becomes a `FaultError`.
    """
    try:
        yield
    except BaseException as error:
        tell(as_ours(error))


def as_ours(error: BaseException) -> HeedfulError:
    """An error as one of heedful's.

    >>> as_ours(KeyError("a"))
    FaultError("KeyError: 'a'")
    """
    if isinstance(error, HeedfulError):
        return error
    return FaultError(": ".join(filter(None, (type(error).__name__, str(error)))))


class Job(ABC):
    """Work in steps of at most some tenths of a second; defines `steps`.

    done: the share that is done, 0 to 1. is_whole: whether it has ended. failed: why it never will.
    """

    done = 0.0
    is_whole = False
    failed = ""
    _rest: Iterator[None] | None = None

    @abstractmethod
    def steps(self) -> Iterator[None]:
        """Do the work, and yield after each step."""

    def build(self, going_on: Callable[[], bool] = lambda: True) -> bool:
        """Work until the end, or until `going_on` says no; then it goes on from there next time."""
        if self._rest is None:
            self._rest = self.steps()
        while not self.is_whole and not self.failed and going_on():
            try:
                next(self._rest)
            except StopIteration:
                self.done, self.is_whole = 1.0, True
            except BaseException as error:
                self.failed = _said(error)
                raise
        return self.is_whole

    @property
    def said(self) -> dict[str, object]:
        """What an answer tells of a job: how far it is, or why it will not come."""
        return {"note": self.failed, "done": 1.0} if self.failed else {"done": self.done}


def bands(queries: range, width: int, weights: int) -> Iterator[tuple[float, range]]:
    """Runs of rows of at most so many weights, and the share that is done with each.

    >>> list(bands(range(5), 10, 20))
    [(0.4, range(0, 2)), (0.8, range(2, 4)), (1.0, range(4, 5))]
    """
    size = max(1, weights // max(1, width))
    for first in range(0, len(queries), size):
        run = queries[first : first + size]
        yield (first + len(run)) / len(queries), run


class Background:
    """The jobs that wait."""

    def __init__(self) -> None:
        self._shown: list[Job] = []
        self._known: list[Job] = []

    def show(self, job: Job) -> None:
        """Do this next: it is in view."""
        if not job.is_whole and not job.failed:
            self.forget(job)
            self._shown = [*self._shown, job]

    def know(self, job: Job) -> None:
        """Do this where nothing is to be shown."""
        if not job.is_whole and not job.failed and job not in self._known:
            self._known.append(job)

    def forget(self, job: Job) -> None:
        """Do not do this any more."""
        self._shown = [one for one in self._shown if one is not job]
        self._known = [one for one in self._known if one is not job]

    def work(self, going_on: Callable[[], bool] = lambda: True) -> bool:
        """Go on with the job that is next; whether there was any."""
        waiting = self._shown or self._known
        if not waiting:
            return False
        job = self._shown[-1] if self._shown else self._known[0]
        is_over = True  # also where something raises before the job has begun
        with caught(lambda _: None), _core_left():  # every answer about the job tells why it failed
            job.build(going_on)
            is_over = job.is_whole or bool(job.failed)
        if is_over:
            waiting.remove(job)
        return True


@contextmanager
def _core_left() -> Iterator[None]:
    """One core less than else: the browser that shows it all draws on that one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _said(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"not computed: {error.strerror}"
    ours = as_ours(error)
    return f"not computed: {ours}" if isinstance(ours, FaultError) else str(ours)


def nothing(going_on: Callable[[], bool]) -> bool:
    """No work, ever."""
    return False


class Turns:
    """A stack of questions, and a thread that answers them.

    Args:
        idle: is called where no question waits, and again while it returns True. It is given a
            function that says whether it may go on.
        watched: the same for work that somebody watches: it comes before `idle`, and at once.
    """

    def __init__(self, idle: Idle = nothing, *, watched: Idle = nothing) -> None:
        self._waiting: list[tuple[Callable[[], Any], Future]] = []
        self._changed = threading.Condition()
        self._idle, self._watched, self._ended = idle, watched, False
        self._thread = threading.Thread(target=self._answer, daemon=True, name="heedful-explorer")
        self._thread.start()

    def ask(self, work: Callable[[], Any]) -> Future:
        """A future of what the work returns, or of a `HeedfulError`; cancelled, it is not begun."""
        future: Future = Future()
        with self._changed:
            if self._ended:
                _refuse(future)
                return future
            self._waiting = [one for one in self._waiting if not one[1].cancelled()]
            self._waiting.append((work, future))
            self._changed.notify()
        return future

    def end(self, seconds: float = 5.0) -> None:
        """Answer nothing more: refuse who waits, and wait for the step that is being computed."""
        with self._changed:
            self._ended = True
            refused, self._waiting = self._waiting, []
            self._changed.notify_all()
        for _, future in refused:
            _refuse(future)
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
                    self._await(REST)
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


def _refuse(future: Future) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(RefusedError("the explorer has ended"))


class RefusedError(RunError):
    """A question that is not answered, though nothing is wrong with it."""
