"""Accuracy and training time of the built-in translation example, the preset `dates`.

    python benchmarks/dates.py

The benchmark trains as `heedful train --pairs dates` does. Then it translates 2,000 dates that are
not in the training pairs to ISO form. A translation is right if the whole string is right.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from timing import machine

from heedful.models import load_model
from heedful.text import Tokenizer, unseen_date_pairs
from heedful.train import Ended, Validation, begin, new_plan, open_training, preset
from heedful.translate import Search, translate
from heedful.views.terminal import duration

BATCH = 250  # sources per batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="training steps (default: the preset's)")
    options = parser.parse_args()
    changes = {"train": {"steps": options.steps}} if options.steps else {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, took = train_it(Path(folder, "run"), changes)
        model = load_model(Path(folder, "run"))
        for beams in (1, 4):
            share, wrong = accuracy(model, tokenizer, Search(beams=beams))
            print(f"{beams} beam{'s' * (beams > 1)}: {100 * share:.2f} % of unseen dates are right")
        print(f"trained in {duration(took)}, preparation included")
    for line in wrong[:5]:
        print(f"  wrong: {line}")


def train_it(directory: Path, changes: dict) -> tuple[Tokenizer, float]:
    print(machine(), flush=True)
    began = time.perf_counter()
    plan = new_plan(directory, (), preset("dates").changed(changes))
    prepared = begin(plan)
    training = open_training(plan, prepared)
    for event in training.events():
        if isinstance(event, Validation):
            took = duration(time.perf_counter() - began)
            print(f"step {event.step:5,}  validation loss {event.loss:.4f}  {took}", flush=True)
        if isinstance(event, Ended):
            print(f"{event.step:,} steps")
    return prepared.tokenizer, time.perf_counter() - began


def accuracy(model, tokenizer: Tokenizer, search: Search) -> tuple[float, list[str]]:
    """Return the share of right translations of unseen dates, and a line for each wrong one."""
    pairs, wrong = unseen_date_pairs(), []
    for start in range(0, len(pairs), BATCH):
        part = pairs[start : start + BATCH]
        results = translate(model, [tokenizer.encode(pair.source) for pair in part], search)
        for pair, targets in zip(part, results, strict=True):
            answer = tokenizer.decode(targets[0].ids)
            if answer != pair.target:
                wrong.append(f"{pair.source} → {answer}, not {pair.target}")
    return 1 - len(wrong) / len(pairs), wrong


if __name__ == "__main__":
    main()
