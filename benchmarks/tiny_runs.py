"""Tiny runs, in processes that are killed: what `faults.py` does its faults to."""

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
from heedful.processes import Processes
from heedful.train import PRESETS, Plan, Recipe, open_training, read_metrics
from heedful.train.checkpoint import latest
from heedful.train.events import Noticed
from heedful.train.plan import new_plan, read_plan
from heedful.train.run import begin, events, prepare_run
from heedful.train.run_directory import owning
from heedful.train.watch import recordings_of

STEPS = 16
REFUSED = 3  # the status of work that ended with a clear error
Outcome = tuple[Any, ...]


def written_texts(place: Path) -> tuple[Path, Path]:
    """Two texts of the same characters and length, so that only checks can tell them apart."""
    lines = [f"{i} green bottles on the wall, {i * i} of them\n" for i in range(100, 180)]
    first, second = place / "first.txt", place / "second.txt"
    first.write_text("".join(lines))
    second.write_text("".join(reversed(lines)))
    return first, second


def recipe(**changes: Any) -> Recipe:
    """A model and a training that take a moment, with everything that has a state."""
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
    """Train a plan as the command does; what was said."""
    with owning(plan.directory):
        training = open_training(plan, make(plan))
        if resume:
            training.restore()
        return [e.words for e in events(plan, training) if isinstance(e, Noticed)]


def resumed(directory: Path, **changes: Any) -> list[str]:
    """Go on with a run; what was said."""
    plan = read_plan(directory)
    plan = plan._replace(recipe=plan.recipe.changed({"train": changes}))
    return trained(plan, prepare_run, resume=True)


def outcome(directory: Path) -> Outcome:
    """All numbers of a run that is at its end."""
    place = latest(directory)
    if place is not None and place.is_dir():  # of many processes, each its part
        last = load_sharded(place, lambda _, shape: torch.zeros(shape), Processes())
        about = read_metadata(place)
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
    apart(lambda: trained(new_plan(directory, [str(text)], recipe(**changes)), begin))
    return outcome(directory)


def apart(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Do some work in a process that is forked, and killed after so many seconds; its status."""
    process = os.fork()
    if not process:
        try:  # whatever happens, this process ends here, and cleans up nothing of the other one
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
    """Do some work, and be killed at the n-th rename, flush or write of a tensor."""
    wrapped(*MOMENTS[moment], after)
    work()


def wrapped(module: Any, name: str, after: int) -> None:
    """Make the n-th call of a function end this process."""
    function, count = getattr(module, name), iter(range(1, 1 << 30))

    def deadly(*arguments: Any, **named: Any) -> Any:
        if next(count) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    setattr(module, name, deadly)


def struck(work: Callable[[], object], i: int, seconds: float, chosen: random.Random) -> None:
    """Kill some work: every other time at random, else inside a rename, flush or write."""
    if i % 2:
        apart(work, kill_after=chosen.random() * seconds)
    else:
        moment = list(MOMENTS)[i // 2 % len(MOMENTS)]
        after = chosen.randint(1, {"rename": 20, "flush": 40, "write": 400}[moment])
        apart(lambda: deadly(moment, after, work))


def lasting(work: Callable[[], object]) -> float:
    """Seconds that some work takes in a process of its own."""
    began = time.perf_counter()
    apart(work)
    return time.perf_counter() - began
