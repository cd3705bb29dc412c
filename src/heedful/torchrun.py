"""This process's rank from torchrun's environment variables, and its exit after an error.

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
    """Return this process as torchrun's variables describe it; without them, a single process.

    Raises:
        ArgumentError: the variables are invalid, incomplete or contradictory.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Processes()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", RESTARTS)
    try:
        process = Processes(*(int(os.environ.get(name, 0)) for name in names))
    except ValueError:
        process = Processes(size=0)
    lacks_address = process.size > 1 and not all(os.environ.get(name) for name in ADDRESS)
    if lacks_address or not 0 <= process.rank < process.size:
        raise ArgumentError(
            ", ".join(f"{n}={os.environ.get(n, '')!r}" for n in (*names[:2], *ADDRESS)),
            expected="the variables that torchrun sets: a rank below the number of processes, and "
            "the address of rank 0",
            remedy=f"start the process with torchrun, or unset {' and '.join(names[:2])}",
        )
    return process


def is_distributed() -> bool:
    """Return whether torchrun has started more than one process."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def is_reporter() -> bool:
    """Return whether to report an error that all processes raise, such as an invalid option."""
    return not is_distributed() or os.environ["RANK"] == "0"


def error_prefix() -> str:
    """Return the start of an error message that names this process; empty for rank 0."""
    if is_reporter():
        return ""
    return f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: "


def record_error(error: BaseException) -> None:
    """Write an error to torchrun's error file; torchrun prints the error after ending the job."""
    if os.environ.get("TORCHELASTIC_ERROR_FILE"):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        with suppress(OSError):  # a full disk
            get_error_handler().record_exception(error)


def await_termination() -> None:
    """Give torchrun time to end this process because another process has failed."""
    time.sleep(2 * GRACE)


def exit_at_once(status: int) -> NoReturn:
    """Exit without Python's shutdown, which could abort: torch's threads may wait for the GIL."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
