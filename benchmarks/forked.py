"""The processes of a distributed run, forked instead of started with a new Python."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def forked(rank: int, size: int, port: int, work: Callable[[], int]) -> int:
    """Fork a process with the variables that torchrun sets, and return its process id.

    Args:
        rank: the rank of the process.
        size: the number of processes.
        port: the port of rank 0 (MASTER_PORT).
        work: the function to run; it returns the exit status.
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
    status = 99  # the status after an exception; no `work` returns it
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
