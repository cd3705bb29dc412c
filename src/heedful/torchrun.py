"""This process as torchrun's environment variables describe it, and how such a process ends.

torchrun passes rank and size in environment variables (torch's documentation, *torchrun (Elastic
Launch)*), and reads the error of a failed process from a file.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import NoReturn

from heedful.errors import ArgumentError
from heedful.processes import ADDRESS, GRACE, Processes

RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def started() -> Processes:
    """Return this process from torchrun's variables; without them, a single process.

    Raises:
        ArgumentError: the variables contradict each other.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Processes()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", RESTARTS)
    try:
        process = Processes(*(int(os.environ.get(name, 0)) for name in names))
    except ValueError:
        process = Processes(size=0)
    is_lost = process.size > 1 and not all(os.environ.get(name) for name in ADDRESS)
    if is_lost or not 0 <= process.rank < process.size:
        raise ArgumentError(
            ", ".join(f"{n}={os.environ.get(n, '')!r}" for n in (*names[:2], *ADDRESS)),
            expected="the variables that torchrun sets: a rank below the number of processes, and "
            "the address of the first",
            remedy=f"start it with torchrun, or unset {' and '.join(names[:2])}",
        )
    return process


def is_distributed() -> bool:
    """Return whether torchrun has started more than one process."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def is_reporter() -> bool:
    """Return whether this process reports errors that all have alike, such as a wrong option."""
    return not is_distributed() or os.environ["RANK"] == "0"


def error_prefix() -> str:
    """Return the prefix of the errors of a process other than the first."""
    try:
        process = started()
    except ArgumentError:  # this is the error to report
        return ""
    return "" if process.is_first else f"process {process.rank} of {process.size}: "


def record_error(error: BaseException) -> None:
    """Write an error to torchrun's error file; torchrun prints it when it ends the others."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        try:
            get_error_handler().record_exception(error)
        except OSError:  # the disk may be full; torchrun cannot parse half a record
            with suppress(OSError):
                os.unlink(path)


def await_termination() -> None:
    """Wait until torchrun ends this process because another one has failed."""
    time.sleep(2 * GRACE)


def exit_at_once(status: int) -> NoReturn:
    """Exit without Python's shutdown, which could abort: torch's threads may wait for the GIL."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
