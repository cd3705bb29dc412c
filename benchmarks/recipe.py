"""What each part of the default recipe is worth: one changed at a time.

    python benchmarks/recipe.py tinyshakespeare.txt
    python benchmarks/recipe.py tinyshakespeare.txt --only "the recipe" "AdamW for all"

A character a token, 12 × 64 tokens a step, width 128, 4 blocks. Each row is a run of its own for
each seed with the same number of steps: the loss over the whole validation split at the end (mean,
lowest and highest), and processor seconds of all its steps, that of the first row being 1. "at its
time" gives a row as many steps as cost what the recipe's do, so that it is at equal time; most
steps cost the same, and such a row is at equal time already.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from timing import machine

from heedful.train import PRESETS, Recipe, Step, Validation, begin, new_plan, open_training

ALIKE = 0.04  # a cost that differs by less counts as the same
ADAMW = {"optimizer": "adamw"}
BEFORE = {**ADAMW, "initial": "normal", "decay": "cosine", "final_rate": 0.1, "warmup": 50}
PLAIN = {"convolution": 0}
PARTS: dict[str, dict[str, dict]] = {
    "the recipe": {},
    "what it was before": {"train": BEFORE, "model": PLAIN},
    "no short convolution": {"model": PLAIN},
    "it goes back one token": {"model": {"convolution": 1}},
    "its rate is that of the tables": {"train": {"convolution_rate": 0.003}},
    "each window once in a pass": {"train": {"order": "shuffled"}},
    "products in bfloat16, if faster": {"train": {"precision": "auto"}},
    "AdamW for all": {"train": ADAMW},
    "normal weights to begin with": {"train": {"initial": "normal"}},
    "cosine to a tenth": {"train": {"decay": "cosine", "final_rate": 0.1}},
    "a fall from the first step": {"train": {"fall": 1.0}},
    "no clipping": {"train": {"clip": 0.0}},
    "momentum 0.95": {"train": {"momentum": 0.95}},
    "twice the matrix rate": {"train": {"matrix_rate": 0.04}},
    "half the matrix rate": {"train": {"matrix_rate": 0.01}},
    "matrices decay by 0.1": {"train": {"matrix_decay": 0.1}},
    "beta2 0.99": {"train": {"beta2": 0.99}},
    "a head of its own": {"model": {"tied": False}},
}


class Row(NamedTuple):
    """A run's last validation loss, and the processor seconds of its steps."""

    loss: float
    seconds: float


def main() -> None:
    options = _arguments()
    print(f"{machine()}; {options.steps} steps, {options.seeds} seeds", flush=True)
    base: list[Row] = []
    for name in options.only or PARTS:
        rows = [trained(options.text, PARTS[name], options.steps, n) for n in range(options.seeds)]
        base = base or rows
        share = cost(rows) / cost(base)
        _show(name, rows, share)
        if options.equal_time and abs(share - 1) > ALIKE:
            steps = round(options.steps / share)
            again = [trained(options.text, PARTS[name], steps, n) for n in range(options.seeds)]
            _show(f"  at its time, {steps} steps", again, cost(again) / cost(base))


def cost(rows: list[Row]) -> float:
    """Processor seconds of a run, the mean of the seeds'."""
    return statistics.fmean(row.seconds for row in rows)


def trained(text: str, changes: dict[str, dict], steps: int, seed: int) -> Row:
    """Train on the text with a part of the recipe changed."""
    with tempfile.TemporaryDirectory() as folder:
        plan = new_plan(Path(folder, "run"), [text], recipe(steps, seed).changed(changes))
        training = open_training(plan, begin(plan))
        seconds, loss, began = 0.0, float("nan"), 0.0
        for event in training.events():
            if isinstance(event, Step):
                seconds += time.process_time() - began
            if isinstance(event, Validation):
                loss = event.loss
            began = time.process_time()
    return Row(loss, seconds)


def recipe(steps: int, seed: int) -> Recipe:
    """The preset characters in nanoGPT's small shape, its products the same on every machine."""
    return PRESETS["characters"].changed(
        {
            "model": {"context_length": 64},
            "train": {"batch": 12, "steps": steps, "seed": seed}
            | {"evaluate_every": steps, "save_every": steps, "device": "cpu"}
            | {"order": "random", "precision": "float32"},
        }
    )


def _show(name: str, rows: list[Row], share: float) -> None:
    losses = [row.loss for row in rows]
    spread = f"({min(losses):.3f}–{max(losses):.3f})" if len(rows) > 1 else ""
    print(f"{name:34}{statistics.fmean(losses):.3f} {spread:16}{share:6.2f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="a text; each of its characters becomes a token")
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these rows alone")
    parser.add_argument("--equal-time", action="store_true", help="and each at the recipe's time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
