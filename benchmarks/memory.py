"""Memory of a process as Linux reports it, and a new process to measure it in."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def in_fresh_process(measure: Callable[..., T], *arguments: object) -> T:
    """Call `measure` in a new process, so that earlier work does not affect its memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


@contextmanager
def memory_rise() -> Iterator[list[float]]:
    """Yield a list whose entry is the peak rise of anonymous memory in MB, sampled every 5 ms."""
    start = _megabytes("RssAnon")
    rise, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            rise[0] = max(rise[0], _megabytes("RssAnon") - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield rise
    finally:
        is_over.set()
        watcher.join()


def highest() -> float:
    """Return the peak memory of this process in GB, mapped files included."""
    return _megabytes("VmHWM") / 1e3


def _megabytes(line: str) -> float:
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return int(text.split()[1]) * 1024 / 1e6
    raise SystemExit(f"no {line} in /proc/self/status: memory is measured on Linux")
