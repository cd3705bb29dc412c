"""Taking turns: every way is timed once in each round, so that what slows the machine slows all."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

# what glibc gives back to the system, and what it asks it for one by one: nothing
KEEPS = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


class Turns:
    """Seconds of each way in each round; the first round, which warms up, does not count."""

    def __init__(self, ways: Mapping[str, Callable[[], object]], rounds: int) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            # every other round backwards: none of them always comes after the same one
            for name in list(ways) if turn % 2 else reversed(ways):
                began = time.perf_counter()
                ways[name]()
                if torch.cuda.is_initialized():  # a GPU goes on after its call has returned
                    torch.cuda.synchronize()
                if turn:
                    self.seconds[name].append(time.perf_counter() - began)

    def median(self, name: str) -> float:
        """Seconds of a way, the median of the rounds."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """How many times as long one takes as another: the median of the rounds' own ratios."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return statistics.median(one / other for one, other in pairs)


def alone(measure: Callable[..., None], *told: Any, **environment: str) -> Any:
    """What a function sends, run in a process of its own with these variables."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(theirs, *told))
    os.environ |= environment
    process.start()
    theirs.close()  # so that a process that ends with an error is not waited for
    for name in environment:
        del os.environ[name]
    found = ours.recv()
    process.join()
    return found


def machine() -> str:
    """What the figures were measured on."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
