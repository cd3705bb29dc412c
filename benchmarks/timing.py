"""Timing of alternatives in interleaved rounds; a slow moment affects all alternatives equally."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

# glibc keeps freed memory instead of returning it to the system
KEEP_PAGES = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


class Turns:
    """Time each way once per round; the first round is a warm-up and is not counted.

    clock: `time.process_time` measures the processor time of all threads, which other programs on
        the machine hardly change.
    """

    def __init__(
        self,
        ways: Mapping[str, Callable[[], object]],
        rounds: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            # every other round runs in reverse, so that no way always follows another
            for name in list(ways) if turn % 2 else reversed(ways):
                began = clock()
                ways[name]()
                if torch.cuda.is_initialized():  # kernels run asynchronously
                    torch.cuda.synchronize()
                if turn:
                    self.seconds[name].append(clock() - began)

    def median(self, name: str) -> float:
        """Return the median seconds of a way."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """Return the median over the rounds of the seconds of `name` divided by those of `to`."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return statistics.median(first / second for first, second in pairs)


def in_new_process(measure: Callable[..., None], *arguments: Any, **environment: str) -> Any:
    """Run `measure(pipe, …)` in a new process with these variables; return the sent object."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=measure, args=(sender, *arguments))
    os.environ |= environment
    process.start()
    sender.close()  # otherwise recv() would wait forever if the process fails
    for name in environment:
        del os.environ[name]
    result = receiver.recv()
    process.join()
    return result


def machine() -> str:
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
