"""Loss and speed of the model of document 004 (Zhang), with a compact and with a full vocabulary.

    python benchmarks/zero_to_hero.py sales_textbook.txt

The text is the 460,319 characters that document 004 trains on. The encoding cl100k_base comes from
tiktoken's cache (TIKTOKEN_CACHE_DIR) or the network.

The benchmark trains the preset zero-to-hero for 5,000 steps and prints the mean loss over the whole
training split in evaluation mode. Then it times a training step, alternating with a step of the
same model with the full embedding table of the document (100,070 rows, up to the largest id).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from timing import Turns, machine

from heedful.train import Step, Training, Validation, begin, new_plan, open_training, preset
from heedful.views.terminal import duration

BLOCK = 20  # steps per turn: the first are slow, because caches hold the other model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="the training text of document 004")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=9, help="timed blocks of steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train_it(Path(folder, "run"), options.text, options.steps)
        compare(Path(folder), options.text, options.rounds)


def prepared(directory: Path, text: str, compact: bool, steps: int) -> Training:
    """Prepare a training run of the preset on the text, with few validations."""
    changes = {
        "text": {"compact": compact},
        "train": {"steps": steps, "evaluate_every": 1000, "save_every": 10_000},
    }
    plan = new_plan(directory, [text], preset("zero-to-hero").changed(changes))
    return open_training(plan, begin(plan))


def train_it(directory: Path, text: str, steps: int) -> None:
    training = prepared(directory, text, compact=True, steps=steps)
    print(f"{machine()}; {training.model.config.vocabulary:,} rows in the table", flush=True)
    began = time.perf_counter()
    for event in training.events():
        if isinstance(event, Validation):
            print(f"step {event.step:5,}  validation loss {event.loss:.3f}", flush=True)
    took = time.perf_counter() - began
    loss = training.evaluate(training.task.train)
    print(f"{steps:,} steps in {duration(took)} with validation: {1e3 * took / steps:.1f} ms each")
    print(f"mean loss over the whole training split, in evaluation mode: {loss:.3f}")


def compare(folder: Path, text: str, rounds: int) -> None:
    ways = {}
    for name, compact in (("compact", True), ("whole", False)):
        training = prepared(folder / name, text, compact, steps=100_000)
        events = training.events()
        rows = training.model.config.vocabulary
        ways[f"{rows:,} rows"] = lambda events=events: steps(events)
    turns = Turns(ways, rounds)
    fast, slow = ways
    for name in ways:
        print(f"a step with {name:12} {1e3 * turns.median(name) / BLOCK:7.1f} ms")
    print(f"a step with the full table takes {turns.ratio(slow, fast):.1f} times as long")


def steps(events) -> None:
    count = 0
    for event in events:
        count += isinstance(event, Step)
        if count == BLOCK:
            return


if __name__ == "__main__":
    main()
