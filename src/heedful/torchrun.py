"""The process that torchrun started, by its environment, and how such a process ends.

torchrun names the processes in environment variables (torch's documentation, *torchrun (Elastic
Launch)*), and reads the error of one that fails from a file.
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
    """The process that this is, by the variables of `torchrun`; without them there is one.

    Raises:
        ArgumentError: variables that do not fit each other.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Processes()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", RESTARTS)
    try:
        here = Processes(*(int(os.environ.get(name, 0)) for name in names))
    except ValueError:
        here = Processes(size=0)
    is_lost = here.size > 1 and not all(os.environ.get(name) for name in ADDRESS)
    if is_lost or not 0 <= here.rank < here.size:
        given = (*names[:2], *ADDRESS)
        raise ArgumentError(
            ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in given),
            expected="the variables that torchrun sets: a rank below the number of processes, and "
            "where they meet",
            remedy=f"start it with torchrun, or unset {' and '.join(names[:2])}",
        )
    return here


def has_others() -> bool:
    """Whether torchrun has started more than this process."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def speaks() -> bool:
    """Whether this process reports what all of them would report alike, such as a wrong option."""
    return not has_others() or os.environ["RANK"] == "0"


def speaker() -> str:
    """The prefix of what a process other than the first one reports."""
    try:
        here = started()
    except ArgumentError:  # which is what it reports
        return ""
    return "" if here.is_first else f"process {here.rank} of {here.size}: "


def record(error: BaseException) -> None:
    """Write an error where torchrun looks for it, to name it when it ends the others."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        try:
            get_error_handler().record_exception(error)
        except OSError:  # a full disk, which may be the error; torchrun cannot read half a record
            with suppress(OSError):
                os.unlink(path)


def leave_it_to_another() -> None:
    """Wait until torchrun ends this process, because of what another one reports."""
    time.sleep(2 * GRACE)


def leave(status: int) -> NoReturn:
    """End a process that has trained with others, at once.

    Threads of torch may still wait for Python's lock then, and Python, as it ends, would abort.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
