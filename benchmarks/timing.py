"""Taking turns: every way is timed once in each round, and its median is what counts."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each way; a first round, which warms up, does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, call in ways.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def machine() -> str:
    """What the figures were measured on."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
