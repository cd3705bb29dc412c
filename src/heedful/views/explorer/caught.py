"""What a job raises is told to whoever waits, and the thread that does it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from heedful.errors import HeedfulError, RunError


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
