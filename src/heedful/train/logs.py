"""The services that draw a run while it trains: a process for each, which reads what is written.

Nothing here is waited for while training goes on. A service that fails, or hangs, or cannot be
started is told of in a line, and training goes on without it.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heedful.train.services import FAILED, services_of

PATIENCE = 10.0  # seconds in which services may finish, once training has ended
# Our paths, as they are now, for a process that need not be started where this one was
START = (
    "import sys; sys.path[:] = {paths!r}; from heedful.train.follower import main; main(*{given!r})"
)


class Logs:
    """Services that draw the run in a directory, which goes on from a step."""

    def __init__(self, names: list[str], directory: Path, start: int) -> None:
        self._waiting, self._directory, self._start = names, directory, start
        self._following: dict[str, subprocess.Popen] = {}
        self._reading: dict[str, threading.Thread] = {}
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def begin(self) -> None:
        """Start the services, if they are not; the directory must have its `metrics.jsonl`."""
        for name in self._waiting:
            given = (str(self._directory), name, self._start)
            code = START.format(paths=[os.path.abspath(path) for path in sys.path], given=given)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    encoding="utf-8",
                    start_new_session=True,  # Ctrl-C is for whoever trains
                )
            except OSError as error:
                self._fail(name, str(error))
                continue
            thread = threading.Thread(target=self._read, args=(name, process), daemon=True)
            thread.start()
            self._following[name], self._reading[name] = process, thread
        self._waiting = []

    def said(self) -> Iterator[str]:
        """What services said since it was asked last: a sentence each."""
        with suppress(queue.Empty):
            while True:
                yield self._said.get_nowait()

    def end(self) -> None:
        """Let services finish. One that takes longer goes on by itself, for ten minutes at most."""
        for process in self._following.values():
            if process.stdin:
                with suppress(OSError):  # it has ended before
                    process.stdin.close()
        until = time.monotonic() + PATIENCE
        for name, thread in self._reading.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self._said.put(f"{name} is not done yet, and goes on sending by itself.")
        self._following, self._reading = {}, {}

    def _read(self, name: str, process: subprocess.Popen) -> None:
        """Pass on what a process says, until it has ended."""
        why = ""
        with process:
            for line in process.stdout or ():
                if line.startswith(FAILED):
                    why = line.removeprefix(FAILED).strip()
                else:
                    self._said.put(f"{name}: {line.strip()}")
        if process.returncode:
            self._fail(name, why or f"it ended with status {process.returncode}")

    def _fail(self, name: str, why: str) -> None:
        self._said.put(f"{name}: {why}; training goes on without it.")


@contextmanager
def logging_to(log: str | None, directory: Path, start: int) -> Iterator[Logs]:
    """The services named in a setting, for a run that goes on from a step; ended with it."""
    logs = Logs(services_of(log), directory, start)
    try:
        yield logs
    finally:
        logs.end()
