"""Processes of one run on this machine, forked: no second start of Python for each."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable


def free_port() -> int:
    """A port on this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def forked(rank: int, size: int, port: int, work: Callable[[], int]) -> int:
    """Begin a process with the variables that torchrun sets; its number.

    Args:
        rank: which of them it is.
        size: how many there are.
        port: where they meet.
        work: what it does; gives its exit status.
    """
    process = os.fork()
    if process:
        return process
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    status = 99  # that no work gives
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
