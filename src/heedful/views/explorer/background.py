"""What is computed while nobody asks, step by step, so that a question never waits for long.

What a map shows comes first, the newest wish first of all; heads that are only to be known come
after it, in the order in which they were asked for. A job that fails says why and is left; what it
was to make exact stays sampled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from heedful.errors import HeedfulError, RunError

MOST = 64  # jobs that may wait to be begun or ended; the oldest is left first


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
            self._shown = [*self._shown[1 - MOST :], job]

    def know(self, job: Job) -> None:
        """Do this where nothing is to be shown."""
        if not job.is_whole and not job.failed and job not in self._known:
            self._known.append(job)

    def forget(self, job: Job) -> None:
        """Do not do this any more."""
        self._shown = [one for one in self._shown if one is not job]

    def drop(self, job: Job) -> None:
        """Neither show this nor know it any more."""
        self.forget(job)
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
