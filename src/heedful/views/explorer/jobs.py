"""The thread that answers requests, the newest first, and runs background jobs between requests.

While the user pans a map, the page requests tiles faster than they are computed, and only the
latest tiles are visible. So the newest request runs first, and a cancelled request never runs.

Background jobs run in steps, so that a request waits for one step at most. Jobs for a visible map
run first, the newest of them before the older ones. Jobs for head scores run last, in the order of
the requests. If a job fails, it stores its error message, and the page keeps the sampled numbers.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from heedful.errors import HeedfulError, RunError

POLL = 0.5  # seconds between two checks for background work
IDLE_DELAY = 0.05  # seconds without a request before idle work starts: requests come in bursts

# a function that works while its argument returns True, and returns whether there was work
Work = Callable[[Callable[[], bool]], bool]


class FaultError(RunError):
    """An unexpected exception, reported in one line."""


@contextmanager
def errors_to(report: Callable[[HeedfulError], Any]) -> Iterator[None]:
    """Pass any exception to `report`, so that none ends the thread.

    A panic in a Rust library raises a `BaseException` that is not an `Exception`. An asyncio future
    cannot hold a `StopIteration`. So every exception but a `HeedfulError` becomes a `FaultError`.
    """
    try:
        yield
    except BaseException as error:
        report(as_heedful_error(error))


def as_heedful_error(error: BaseException) -> HeedfulError:
    """Return a `HeedfulError` itself, and any other exception as a `FaultError`.

    >>> as_heedful_error(KeyError("a"))
    FaultError("KeyError: 'a'")
    """
    if isinstance(error, HeedfulError):
        return error
    return FaultError(": ".join(filter(None, (type(error).__name__, str(error)))))


class Job(ABC):
    """Background work in steps of a few tenths of a second at most; subclasses define `steps`.

    fraction_done: the completed share, 0 to 1. is_complete: whether all steps ran. error: the
    message of the error that ended the job, or "".
    """

    fraction_done = 0.0
    is_complete = False
    error = ""
    _steps: Iterator[None] | None = None

    @abstractmethod
    def steps(self) -> Iterator[None]:
        """Do the work, and yield after each step."""

    def run_steps(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Run steps while `may_continue()` is true; the next call resumes. Return `is_complete`.

        If a step raises an exception, `error` stores its message, and `run_steps` raises it.
        """
        if self._steps is None:
            self._steps = self.steps()
        while not self.is_complete and not self.error and may_continue():
            try:
                next(self._steps)
            except StopIteration:
                self.fraction_done, self.is_complete = 1.0, True
            except BaseException as error:
                described = as_heedful_error(error)
                prefix = "not computed: " if isinstance(described, FaultError) else ""
                self.error = f"{prefix}{described}"
                raise
        return self.is_complete

    @property
    def status(self) -> dict[str, object]:
        """The job's fields of a response: the completed share (1 after an error), and any error."""
        return {"note": self.error, "done": 1.0} if self.error else {"done": self.fraction_done}


def bands(queries: range, width: int, weights: int) -> Iterator[tuple[float, range]]:
    """Yield runs of rows, of up to `weights` weights each, with the share of rows up to their end.

    >>> list(bands(range(5), 10, 20))
    [(0.4, range(0, 2)), (0.8, range(2, 4)), (1.0, range(4, 5))]
    """
    size = max(1, weights // max(1, width))
    for first in range(0, len(queries), size):
        run = queries[first : first + size]
        yield (first + len(run)) / len(queries), run


class Background:
    """The queue of jobs."""

    def __init__(self) -> None:
        self._visible: list[Job] = []
        self._queued: list[Job] = []

    def prioritize(self, job: Job) -> None:
        """Run this job next, because the page shows it."""
        if not job.is_complete and not job.error:
            self.remove(job)
            self._visible = [*self._visible, job]

    def enqueue(self, job: Job) -> None:
        """Run this job after all visible and all earlier ones."""
        if not job.is_complete and not job.error and job not in self._queued:
            self._queued.append(job)

    def remove(self, job: Job) -> None:
        """Drop a job that has not completed."""
        self._visible = [waiting for waiting in self._visible if waiting is not job]
        self._queued = [waiting for waiting in self._queued if waiting is not job]

    def work(self, may_continue: Callable[[], bool] = lambda: True) -> bool:
        """Resume the next job; return whether there was one."""
        waiting = self._visible or self._queued
        if not waiting:
            return False
        job = self._visible[-1] if self._visible else self._queued[0]
        is_over = True  # also if the job raises
        with errors_to(lambda _: None):  # the job has stored the error
            job.run_steps(may_continue)
            is_over = job.is_complete or bool(job.error)
        if is_over:
            waiting.remove(job)
        return True


class Worker:
    """A thread with a stack of requests.

    Args:
        idle: background work. While no request waits, it is called `IDLE_DELAY` after the last
            request, and again without a pause if it returned True.
        watched: work that a page watches. It is called like `idle`, but first and without delay.
    """

    def __init__(self, idle: Work = lambda _: False, *, watched: Work = lambda _: False) -> None:
        self._waiting: list[tuple[Callable[[], Any], Future]] = []
        self._changed = threading.Condition()
        self._idle, self._watched, self._ended = idle, watched, False
        self._thread = threading.Thread(target=self._run, daemon=True, name="heedful-explorer")
        self._thread.start()

    def submit(self, work: Callable[[], Any]) -> Future:
        """Return a future that gets the result or the error of `work()`; it can be cancelled."""
        future: Future = Future()
        with self._changed:
            if self._ended:
                _refuse(future)
                return future
            self._waiting.append((work, future))
            self._changed.notify()
        return future

    def shutdown(self, seconds: float = 5.0) -> None:
        """Refuse the waiting requests, and wait up to `seconds` for the current step to end."""
        with self._changed:
            self._ended = True
            refused, self._waiting = self._waiting, []
            self._changed.notify_all()
        for _, future in refused:
            _refuse(future)
        self._thread.join(seconds)

    def _may_continue(self) -> bool:
        return not self._waiting and not self._ended

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._ended:
                    return
                request = self._waiting.pop() if self._waiting else None
            if request is not None:
                work, future = request
                if future.set_running_or_notify_cancel():
                    with errors_to(future.set_exception):
                        future.set_result(work())
                if not self._watched(self._may_continue):
                    self._wait(IDLE_DELAY)
            elif self._watched(self._may_continue):
                continue
            elif not self._idle(self._may_continue):
                self._wait(POLL)

    def _wait(self, seconds: float) -> None:
        """Wait for a request or the shutdown, up to `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._may_continue(), seconds)


def _refuse(future: Future) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(RefusedError("the explorer has ended"))


class RefusedError(RunError):
    """A valid request that came too late: the explorer has ended."""
