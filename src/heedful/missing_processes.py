"""Processes that are missing: how that is noticed, and what is said of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from heedful.errors import HeedfulError

WHERE = ("MASTER_ADDR", "MASTER_PORT")
HURRY = 2.0  # seconds in which all that are left say so, once torchrun asks them to end


class EndedElsewhereError(HeedfulError):
    """Another process could not go on, and has said why: there is nothing to add."""


class LostError(HeedfulError):
    """Another process ended without a word; torchrun knows what it died of."""


class AskedToEnd:
    """Notes when torchrun asks this process to end, as it does once another one has died.

    This one shall say so, and does not obey at once.
    """

    def __init__(self) -> None:
        self._at: float | None = None

    def note(self, *_: Any) -> None:
        """It asks now."""
        self._at = self._at or time.monotonic()

    def listen(self) -> None:
        """Note it from now on, and do nothing else then."""
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, self.note)

    def hurries(self, since: float) -> bool:
        """Whether those that are left have had their time, since one was missed."""
        return self._at is not None and time.monotonic() > max(self._at, since) + HURRY


def no_answer(silent: list[int], size: int, error: BaseException, timeout: float) -> HeedfulError:
    """The error of those that are left, with the numbers of those that say nothing any more."""
    remedy = "what was saved is kept: go on with --resume"
    if not silent:
        words = " ".join(str(error).split())
        return LostError(
            f"{size} processes lost their connection ({words})", cause="the network", remedy=remedy
        )
    who = f"{'process' if len(silent) == 1 else 'processes'} {', '.join(map(str, silent))}"
    is_late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
    if is_late:
        return HeedfulError(
            f"no answer from {who} of {size} in {timeout:g} s",
            cause="it hangs, or is slower than --timeout allows",
            remedy=remedy,
        )
    return LostError(f"no answer from {who} of {size}", cause="it was killed", remedy=remedy)


@contextmanager
def reaching() -> Iterator[None]:
    """Inside, a store that cannot be reached is an error that says so."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, HeedfulError):
            raise
        raise HeedfulError(
            f"the processes do not find each other at {where()} ({str(error).splitlines()[0]})",
            cause="one was not started, or has ended; a machine's address, or its firewall",
            remedy="start all of them with torchrun",
        ) from error


def where() -> str:
    """The address at which the processes meet."""
    return ":".join(os.environ.get(name, "?") for name in WHERE)


def hang_up() -> None:
    """Leave the process group without a word, where one is left that may never answer."""
    import torch.distributed as dist

    with suppress(Exception):
        dist.distributed_c10d._abort_process_group()


def is_of_network(error: BaseException) -> bool:
    """Whether an error is that of an answer that did not come."""
    import torch.distributed as dist

    if not isinstance(error, RuntimeError) or isinstance(error, HeedfulError):
        return False
    return isinstance(error, dist.DistError) or any(
        word in str(error).lower() for word in ("gloo", "nccl", "connection", "timed out")
    )
