"""Tiny training runs in processes that can be killed, for `faults.py`."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heedful.errors import HeedfulError
from heedful.files import atomic, load_tensors, tensor_files
from heedful.files.sharded import load_sharded, read_metadata
from heedful.models.directory import latest_checkpoint
from heedful.processes import Processes
from heedful.train import PRESETS, Plan, Recipe, open_training, read_metrics
from heedful.train.events import Noticed
from heedful.train.plan import new_plan, read_plan
from heedful.train.run import begin, events, prepare_run
from heedful.train.run_directory import lock_run
from heedful.train.watch import recordings_of

STEPS = 16
REFUSED = 3  # the status of work that ended with a clear error
Outcome = tuple[Any, ...]


def written_texts(place: Path) -> tuple[Path, Path]:
    """Write two texts of equal characters and length, so that only checksums distinguish them."""
    lines = [f"{i} green bottles on the wall, {i * i} of them\n" for i in range(100, 180)]
    first, second = place / "first.txt", place / "second.txt"
    first.write_text("".join(lines))
    second.write_text("".join(reversed(lines)))
    return first, second


def recipe(**changes: Any) -> Recipe:
    """Return the recipe of a tiny run, with dropout, so that all kinds of state are saved."""
    quick = PRESETS["quick"]
    text = dataclasses.replace(quick.text, tokenizer="characters")
    model = {"context_length": 16, "width": 24, "layers": 2, "heads": 2, "dropout": 0.1}
    train = {"steps": STEPS, "batch": 3, "evaluate_every": 4, "save_every": 3, "device": "cpu"}
    return Recipe(
        text,
        dataclasses.replace(quick.model, **model),
        dataclasses.replace(quick.train, **{**train, **changes}),
    )


def trained(plan: Plan, make: Callable[[Plan], Any], resume: bool = False) -> list[str]:
    """Train a plan as the command does; return the notices."""
    with lock_run(plan.directory):
        training = open_training(plan, make(plan))
        if resume:
            training.restore()
            plan.write()
        return [e.message for e in events(plan, training) if isinstance(e, Noticed)]


def resumed(directory: Path, **changes: Any) -> list[str]:
    """Resume a run with changed settings; return the notices."""
    plan = read_plan(directory)
    plan = plan.continued(plan.recipe.changed({"train": changes}))
    return trained(plan, prepare_run, resume=True)


def outcome(directory: Path) -> Outcome:
    """Return all numbers of a completed run."""
    checkpoint = latest_checkpoint(directory)
    if checkpoint is not None and checkpoint.is_dir():  # sharded over processes
        last = load_sharded(checkpoint, lambda _, shape: torch.zeros(shape), Processes())
        about = read_metadata(checkpoint)
    else:
        last, about = load_tensors(directory / "state/last.safetensors")
    best, _ = load_tensors(directory / "model.safetensors")
    numbers = {name: tensor.tolist() for name, tensor in {**last, **best}.items()}
    watched = [
        {name: tensor.tolist() for name, tensor in load_tensors(path)[0].items()}
        for path in recordings_of(directory).values()
    ]
    return read_metrics(directory / "metrics.jsonl"), about, numbers, watched


def never_stopped(directory: Path, text: Path, changes: dict[str, Any]) -> Outcome:
    in_fork(lambda: trained(new_plan(directory, [str(text)], recipe(**changes)), begin))
    return outcome(directory)


def in_fork(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Run `work` in a forked process, and kill it after `kill_after` seconds; return its status."""
    process = os.fork()
    if not process:
        try:  # os._exit: the fork must not run the clean-up of its parent
            work()
            os._exit(0)
        except HeedfulError as error:
            os._exit(1 if "\n" in str(error) else REFUSED)
        except BaseException as error:
            print(f"  {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


MOMENTS = {
    "rename": (atomic.os, "replace"),
    "flush": (atomic.os, "fsync"),
    "write": (tensor_files, "_bytes_of"),
}


def deadly(moment: str, after: int, work: Callable[[], object]) -> None:
    """Run `work`, and kill this process at the n-th rename, flush or write of a tensor."""
    wrapped(*MOMENTS[moment], after)
    work()


def wrapped(module: Any, name: str, after: int) -> None:
    """Make the n-th call of a function kill this process."""
    function, count = getattr(module, name), iter(range(1, 1 << 30))

    def killing(*arguments: Any, **options: Any) -> Any:
        if next(count) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    setattr(module, name, killing)


def struck(work: Callable[[], object], i: int, seconds: float, rng: random.Random) -> None:
    """Run and kill `work`: for odd i at a random time, for even i in a rename, flush or write."""
    if i % 2:
        in_fork(work, kill_after=rng.random() * seconds)
    else:
        moment = list(MOMENTS)[i // 2 % len(MOMENTS)]
        after = rng.randint(1, {"rename": 20, "flush": 40, "write": 400}[moment])
        in_fork(lambda: deadly(moment, after, work))


def duration_of(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes in a forked process."""
    began = time.perf_counter()
    in_fork(work)
    return time.perf_counter() - began
