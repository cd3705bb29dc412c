"""Two processes of which one is killed: the rows of `faults.py` on runs that many train.

They are forked, with the variables that torchrun would set, and run the command.
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
import torch.distributed.fsdp  # noqa: F401 so that those that are forked have it
from forked import forked, free_port
from tiny_runs import STEPS, Outcome, outcome, wrapped

from heedful import processes, torchrun
from heedful.cli.main import run

OPTIONS = (
    *("--context-length", "16", "--width", "24", "--layers", "2", "--heads", "2"),
    *("--dropout", "0.1", "--tokenizer", "characters", "--device", "cpu", "--batch", "3"),
    *("--steps", str(STEPS), "--evaluate-every", "4", "--save-every", "3"),
    *("--timeout", "20"),  # for one that is killed before they have met: no torchrun ends these
)
MOMENTS = ("replace", "fsync", "unlink", "mkdir")  # of `os`, in which one is killed
MOST = {"replace": 18, "fsync": 36, "unlink": 18, "mkdir": 8}


def killed_together(
    place: Path, text: Path, options: tuple[str, ...], kills: int, chosen: random.Random
) -> Iterator[str]:
    """One of two is killed, first or second, at random or inside a change of the disk.

    The other one must say so in a line, if it has not finished; then two go on.
    """
    whole = place / "together"
    began = time.perf_counter()
    train = ("train", str(text), *OPTIONS, *options, "--out")
    together(place, *train, str(whole))
    seconds, wanted = time.perf_counter() - began, outcome(whole)
    shutil.rmtree(whole)
    for i in range(kills):
        directory = place / f"together {i}"
        command, in_write = (*train, str(directory)), i // 2 % 2 == 0
        moment = MOMENTS[i // 4 % len(MOMENTS)]
        both_do = not in_write or ("--shard" in options and moment == "fsync")
        dies = i % 2 if both_do else 0  # the first alone writes, but for its own part
        ends = [(0, ""), (0, "")]
        while ends[dies][0] != -signal.SIGKILL:  # else it had ended, or never came to that
            shutil.rmtree(directory, ignore_errors=True)
            if in_write:
                strike = deadly(moment, chosen.randint(1, MOST[moment]))
                ends = together(place, *command, dies=dies, strike=strike)
            else:
                ends = together(place, *command, dies=dies, after=chosen.random() * seconds)
        yield verdict(place, directory, command, wanted, ends)
        shutil.rmtree(directory, ignore_errors=True)


def verdict(
    place: Path,
    directory: Path,
    command: tuple[str, ...],
    wanted: Outcome,
    ends: list[tuple[int, str]],
) -> str:
    """What became of a run of which a process was killed: what the other said, and what goes on."""
    for status, said in ends:  # torch says more, before
        ours = [line for line in said.splitlines() if line.startswith("heedful: ")]
        is_clear = len(ours) == 1 and "unexpected" not in ours[0] and said.endswith(ours[0] + "\n")
        if status not in (0, -signal.SIGKILL) and not (status == 1 and is_clear):
            print(f"  {status}: {said}", file=sys.stderr)
            return "lost"
    has_plan = (directory / "state/recipe.json").exists()
    again = ("train", "--out", str(directory), "--resume") if has_plan else command
    for status, said in together(place, *again):
        if status:
            print(f"  {status}: {said}", file=sys.stderr)
            return "lost"
    left = [path for path in directory.rglob(".*") if path.is_file()]
    return "lost" if left else "harmless" if outcome(directory) == wanted else "silent"


def together(
    place: Path,
    *command: str,
    dies: int | None = None,
    after: float | None = None,
    strike: Callable[[], None] | None = None,
) -> list[tuple[int, str]]:
    """Run the command in two processes, of which one may die; each one's status, and what it says.

    Args:
        dies: which of them.
        after: seconds after which it is killed.
        strike: what makes it kill itself, once it has begun.
    """
    port = free_port()
    said = [place / f"said {rank}" for rank in range(2)]
    for path in said:
        path.write_text("")
    begun = [
        forked(rank, 2, port, partial(_run, said[rank], command, strike if rank == dies else None))
        for rank in range(2)
    ]
    if dies is not None and after is not None:
        time.sleep(after)
        os.kill(begun[dies], signal.SIGKILL)
    ends = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in begun]
    return [(end, path.read_text()) for end, path in zip(ends, said, strict=True)]


def _run(said: Path, command: tuple[str, ...], strike: Callable[[], None] | None) -> int:
    processes.GRACE = torchrun.GRACE = 0.5  # so that it takes no minutes
    processes.JOINING = timedelta(seconds=10)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(said, os.O_WRONLY), 2)
    if strike:
        strike()
    status = run(command)
    sys.stderr.flush()
    return status


def deadly(moment: str, after: int) -> Callable[[], None]:
    """What makes a process be killed at the n-th call of a function of `os`."""
    return lambda: wrapped(os, moment, after)
