"""Kills of one of two processes that train a run together, for `faults.py`.

The forked processes have the variables that torchrun sets, and run the command.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401 imported before forking
from forked import forked, free_port
from tiny_runs import STEPS, Outcome, outcome, wrapped

from heedful import processes, torchrun
from heedful.cli.main import run

OPTIONS = (
    *("--context-length", "16", "--width", "24", "--layers", "2", "--heads", "2"),
    *("--dropout", "0.1", "--tokenizer", "characters", "--device", "cpu", "--batch", "3"),
    *("--steps", str(STEPS), "--evaluate-every", "4", "--save-every", "3"),
    *("--timeout", "20"),  # seconds to connect, since no torchrun ends the surviving process
)
MOMENTS = ("replace", "fsync", "unlink", "mkdir")  # functions of `os` during which to kill
LAST_CALLS = {"replace": 18, "fsync": 36, "unlink": 18, "mkdir": 8}


def killed_together(
    place: Path, text: Path, options: tuple[str, ...], kills: int, rng: random.Random
) -> Iterator[str]:
    """Kill the first or second process, at random or while it changes a file, then resume.

    The surviving process must report the kill in one line, unless it has finished.
    """
    reference = place / "together"
    began = time.perf_counter()
    train = ("train", str(text), *OPTIONS, *options, "--out")
    together(place, *train, str(reference))
    seconds, expected = time.perf_counter() - began, outcome(reference)
    shutil.rmtree(reference)
    for i in range(kills):
        directory = place / f"together {i}"
        command, in_write = (*train, str(directory)), i // 2 % 2 == 0
        moment = MOMENTS[i // 4 % len(MOMENTS)]
        both_write = not in_write or ("--shard" in options and moment == "fsync")
        victim = i % 2 if both_write else 0  # rank 0 alone writes, except for shards
        ends = [(0, ""), (0, "")]
        while ends[victim][0] != -signal.SIGKILL:  # repeat if it ended before it was killed
            shutil.rmtree(directory, ignore_errors=True)
            if in_write:
                strike = deadly(moment, rng.randint(1, LAST_CALLS[moment]))
                ends = together(place, *command, victim=victim, strike=strike)
            else:
                ends = together(place, *command, victim=victim, after=rng.random() * seconds)
        yield verdict(place, directory, command, expected, ends)
        shutil.rmtree(directory, ignore_errors=True)


def verdict(
    place: Path,
    directory: Path,
    command: tuple[str, ...],
    expected: Outcome,
    ends: list[tuple[int, str]],
) -> str:
    """Check the message of the surviving process, resume the run, and return the outcome."""
    for status, errors in ends:  # torch prints further lines before heedful's
        ours = [line for line in errors.splitlines() if line.startswith("heedful: ")]
        is_last = len(ours) == 1 and errors.endswith(ours[0] + "\n")
        is_clear = is_last and "unexpected" not in ours[0]
        if status not in (0, -signal.SIGKILL) and not (status == 1 and is_clear):
            print(f"  {status}: {errors}", file=sys.stderr)
            return "lost"
    has_plan = (directory / "state/recipe.json").exists()
    resume = ("train", "--out", str(directory), "--resume") if has_plan else command
    for status, errors in together(place, *resume):
        if status:
            print(f"  {status}: {errors}", file=sys.stderr)
            return "lost"
    leftovers = [path for path in directory.rglob(".*") if path.is_file()]
    return "lost" if leftovers else "harmless" if outcome(directory) == expected else "silent"


def together(
    place: Path,
    *command: str,
    victim: int | None = None,
    after: float | None = None,
    strike: Callable[[], None] | None = None,
) -> list[tuple[int, str]]:
    """Run the command in two processes; return the exit status and standard error of each.

    Args:
        victim: the rank of the process to kill, if any.
        after: seconds after which it is killed.
        strike: a function called in the victim, after which it kills itself at some call of `os`.
    """
    port = free_port()
    logs = [place / f"errors {rank}" for rank in range(2)]
    for path in logs:
        path.write_text("")
    strikes = [strike if rank == victim else None for rank in range(2)]
    pids = [forked(i, 2, port, partial(_run, logs[i], command, strikes[i])) for i in range(2)]
    if victim is not None and after is not None:
        time.sleep(after)
        os.kill(pids[victim], signal.SIGKILL)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return [(end, path.read_text()) for end, path in zip(ends, logs, strict=True)]


def _run(log: Path, command: tuple[str, ...], strike: Callable[[], None] | None) -> int:
    processes.GRACE = torchrun.GRACE = 0.5  # the defaults would take minutes
    processes.CONNECT_TIMEOUT = timedelta(seconds=10)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_WRONLY), 2)
    if strike:
        strike()
    status = run(command)
    sys.stderr.flush()
    return status


def deadly(moment: str, after: int) -> Callable[[], None]:
    """Return a function after which the n-th call of a function of `os` kills the process."""
    return lambda: wrapped(os, moment, after)
