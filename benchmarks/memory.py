"""Memory as the operating system counts it, and a fresh process to count it in."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def apart(measure: Callable[..., T], *arguments: object) -> T:
    """The measurement in a fresh process, whose memory nothing else has touched."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


@contextmanager
def risen() -> Iterator[list[float]]:
    """The highest anonymous memory meanwhile over that at the start, in MB, seen every 5 ms."""
    start = _megabytes("RssAnon")
    rise, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            rise[0] = max(rise[0], _megabytes("RssAnon") - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield rise
    finally:
        done.set()
        watcher.join()


def highest() -> float:
    """GB, the most that this process has had since it began, files it has mapped included."""
    return _megabytes("VmHWM") / 1e3


def _megabytes(line: str) -> float:
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return int(text.split()[1]) * 1024 / 1e6
    raise SystemExit(f"no {line} in /proc/self/status: memory is measured on Linux")
