"""Ablations of the default training recipe: one part is changed at a time.

    python benchmarks/recipe.py tinyshakespeare.txt
    python benchmarks/recipe.py tinyshakespeare.txt --only "the recipe" "AdamW for all"

Tokens are characters; a step has 12 × 64 tokens; the model has width 128 and 4 blocks. A row has a
run per seed; all rows have the same number of steps. A row shows the final loss on the whole
validation split (mean, lowest and highest), and the processor time of its steps relative to the
first row. If steps cost more or less than those of the first row, --equal-time repeats the row with
as many steps as fit into the time of the first row.
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

EQUAL = 0.04  # costs that differ by less count as equal
ADAMW = {"optimizer": "adamw"}
PREVIOUS = {**ADAMW, "initial": "normal", "decay": "cosine", "final_rate": 0.1, "warmup": 50}
PLAIN = {"convolution": 0}
PARTS: dict[str, dict[str, dict]] = {
    "the recipe": {},
    "the previous recipe": {"train": PREVIOUS, "model": PLAIN},
    "no short convolution": {"model": PLAIN},
    "a convolution of 1 earlier token": {"model": {"convolution": 1}},
    "convolution rate 0.003": {"train": {"convolution_rate": 0.003}},
    "windows shuffled, not random": {"train": {"order": "shuffled"}},
    "bfloat16 products, if faster": {"train": {"precision": "auto"}},
    "AdamW for all": {"train": ADAMW},
    "normal initialisation": {"train": {"initial": "normal"}},
    "cosine decay to a tenth": {"train": {"decay": "cosine", "final_rate": 0.1}},
    "decay from the first step": {"train": {"fall": 1.0}},
    "no clipping": {"train": {"clip": 0.0}},
    "momentum 0.95": {"train": {"momentum": 0.95}},
    "twice the matrix rate": {"train": {"matrix_rate": 0.04}},
    "half the matrix rate": {"train": {"matrix_rate": 0.01}},
    "matrix weight decay 0.1": {"train": {"matrix_decay": 0.1}},
    "beta2 0.99": {"train": {"beta2": 0.99}},
    "an untied output layer": {"model": {"tied": False}},
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
        if options.equal_time and abs(share - 1) > EQUAL:
            steps = round(options.steps / share)
            repeated = [trained(options.text, PARTS[name], steps, n) for n in range(options.seeds)]
            _show(f"  at equal time, {steps} steps", repeated, cost(repeated) / cost(base))


def cost(rows: list[Row]) -> float:
    """Return the processor seconds of a run, averaged over the seeds."""
    return statistics.fmean(row.seconds for row in rows)


def trained(text: str, changes: dict[str, dict], steps: int, seed: int) -> Row:
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
    """Return the preset characters in nanoGPT's small shape, with float32 products."""
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
    parser.add_argument("text", help="a text file; each character is a token")
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="only these rows")
    parser.add_argument("--equal-time", action="store_true", help="repeat rows at equal time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
