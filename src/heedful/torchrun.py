"""What torchrun says to a process that it starts, and what it is told.

It names the processes in environment variables (torch's documentation, *torchrun (Elastic
Launch)*), and reads of one that fails a file with its error.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from heedful.errors import ArgumentError, SaveError
from heedful.files import write_json
from heedful.missing_processes import WHERE
from heedful.processes import GRACE, RESTARTS, Processes


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
    lacking = [name for name in WHERE if not os.environ.get(name)] if here.size > 1 else []
    if lacking or not 0 <= here.rank < here.size:
        said = ", ".join(f"{name}={os.environ[name]!r}" for name in names[:2])
        raise ArgumentError(
            said + (f" without {' and '.join(lacking)}" if lacking else ""),
            expected="the variables that torchrun sets: a rank below the number of processes, and "
            "where they meet",
            remedy=f"start it with torchrun, or unset {' and '.join(names[:2])}",
        )
    return here


def is_first_to_speak() -> bool:
    """Whether this process says what all of them would say alike, such as a wrong option."""
    return not has_others() or os.environ["RANK"] == "0"


def has_others() -> bool:
    """Whether torchrun has started more than this process."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def speaker() -> str:
    """What stands before what a process other than the first one says."""
    try:
        here = started()
    except ArgumentError:  # which is what it says
        return ""
    return "" if here.is_first else f"process {here.rank} of {here.size}: "


def leave_it_to_the_first() -> None:
    """Wait until torchrun ends this process, because of what another one says."""
    time.sleep(GRACE)


def leave(status: int) -> NoReturn:
    """End a process that has trained with others, at once.

    Threads of torch may still wait for Python's lock then, and Python, as it ends, would abort.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def tell_torchrun(words: str, trace: str | None = None) -> None:
    """Leave an error where torchrun looks for it, to name it when it ends the others."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"timestamp": str(int(time.time()))} | ({"py_callstack": trace} if trace else {})
        with suppress(SaveError):
            write_json(Path(path), {"message": {"message": words, "extraInfo": extra}})
