"""Share of the training time that `train --watch` spends on recording heads.

    python benchmarks/watch.py
    python benchmarks/watch.py --rounds 40 --steps 400

The runs watch a text, cut to the context. A look records the heads on this text. Timed steps and
looks alternate. The share is the time of all looks of a run, with the imports of the first look,
divided by the time of all its steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from timing import Turns, machine

from heedful.train import PRESETS, Recipe, Step, Training, begin, new_plan, open_training

TEXT = "the import statement binds names in the local namespace, " * 8
NEVER = 10**9  # steps between validations, and between checkpoints
SHAPES: dict[str, dict[str, dict]] = {
    "preset quick, 8 × 128 tokens": {},
    "12 × 64 tokens, width 128": {
        "model": {"context_length": 64, "width": 128},
        "train": {"batch": 12},
    },
}


def main() -> None:
    options = _arguments()
    print(f"{machine()}; runs of {options.steps} steps", flush=True)
    for name, changes in SHAPES.items():
        recipe = PRESETS["quick"].changed(changes)
        recipe = recipe.changed({"train": {"steps": options.steps}})
        with tempfile.TemporaryDirectory() as folder:
            _watching(name, recipe, Path(folder), options.rounds)


def _watching(name: str, recipe: Recipe, folder: Path, rounds: int) -> None:
    training = _opened(recipe.changed({"train": {"watch": TEXT}}), folder / "watched")
    watch, passes, steps = training.watch, training.runner, recipe.train.steps
    assert watch is not None
    began = time.perf_counter()
    watch.record_step(passes, folder / "watched", 0)
    first = time.perf_counter() - began
    ways = {
        "look": lambda: watch.record_step(passes, folder / "watched", 1),
        "step": _stepping(training),
    }
    turns = Turns(ways, rounds)
    look, step = turns.median("look"), turns.median("step")
    looks = len(watch.steps)
    share = (first + (looks - 1) * look) / (steps * step)
    print(f"\n{name}: {watch.ids.shape[1]} tokens watched {looks} times")
    print(f"  a look    {1000 * look:6.1f} ms; the first {1000 * first:.0f} ms")
    print(f"  a step    {1000 * step:6.1f} ms")
    print(f"  watching  {share:6.1%} of the time of {steps} steps", flush=True)


def _opened(recipe: Recipe, directory: Path) -> Training:
    changes = {"evaluate_every": NEVER, "save_every": NEVER}
    plan = new_plan(directory, (), recipe.changed({"train": changes}))
    return open_training(plan, begin(plan))


def _stepping(training: Training) -> Callable[[], None]:
    """Return a function that performs a training step without watching."""
    training.watch = None
    steps: Iterator[Step] = (event for event in training.events() if isinstance(event, Step))
    next(steps)

    def step() -> None:
        next(steps)

    return step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=800, help="steps of a run")
    parser.add_argument("--rounds", type=int, default=25, help="timed looks and steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
