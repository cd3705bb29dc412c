"""Weak scaling: two processes that train one model, next to two that train separate models.

    python benchmarks/processes.py [--steps 120] [--precision float32]

Two processes of one thread run at the same time, with equal batches per process, so that only the
communication differs. Each process has three training runs: "alone" (a separate model), "DDP" (a
copy of one model in each process) and "FSDP2" (one model, sharded). Steps of the three alternate,
and both processes start each step together. The table shows the tokens per second of both processes
in the median step, and the ratio to "alone" in the same round (median and quartiles). The target is
a ratio of at least 0.85.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from forked import forked, free_port
from timing import machine

from heedful.models import GPT
from heedful.processes import Processes
from heedful.torchrun import started
from heedful.train import PRESETS, NextToken, Training
from heedful.train.metrics import Metrics, Progress

VOCABULARY, CONTEXT, BATCH, FIRST = 65, 256, 8, 3
WAYS = ("alone", "DDP", "FSDP2")


def main() -> None:
    options = _arguments()
    torch.set_num_threads(1)  # forking needs it
    print(f"{machine()}; 2 processes, {BATCH} × {CONTEXT} tokens in each", flush=True)
    for optimizer in ("adamw", "muon"):
        rates = tokens_per_second(optimizer, options)
        for way in WAYS:
            low, share, high = statistics.quantiles(rates[way] / rates["alone"], n=4)
            tokens = statistics.median(rates[way])
            line = f"{optimizer:6} {way:16}{tokens:8,.0f} tokens/s  {share:.2f}"
            print(line if way == "alone" else f"{line}  ({low:.2f}–{high:.2f})", flush=True)


def tokens_per_second(optimizer: str, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return for each way the tokens per second of both processes in each step."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        places = [Path(folder, str(rank)) for rank in range(2)]
        pids = [
            forked(rank, 2, port, lambda place=place: _train(optimizer, options, place))
            for rank, place in enumerate(places)
        ]
        for pid in pids:
            if os.waitpid(pid, 0)[1]:
                raise RuntimeError(f"{optimizer}: a process failed")
        seconds = [json.loads((place / "seconds").read_text()) for place in places]
    return {
        way: sum(BATCH * CONTEXT / np.array(run[way][FIRST:]) for run in seconds) for way in WAYS
    }


def _train(optimizer: str, options: argparse.Namespace, place: Path) -> int:
    """Run steps of each way alternately, and write their seconds."""
    together = started()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with together.process_group(60):
        trainings = {way: _training(way, optimizer, options, place, together) for way in WAYS}
        for turn in range(FIRST + options.steps):
            for way in WAYS if turn % 2 else reversed(WAYS):
                together.any(False)  # a barrier: all steps start at the same time
                seconds[way].append(trainings[way]())
        (place / "seconds").write_text(json.dumps(seconds))
        together.any(False)
    return 0


def _training(
    way: str, optimizer: str, options: argparse.Namespace, place: Path, together: Processes
) -> Callable[[], float]:
    """Return a function that performs a training step and returns its seconds."""
    group = Processes() if way == "alone" else together
    quick = PRESETS["quick"]
    settings = dataclasses.replace(
        quick.train,
        optimizer=optimizer,
        batch=BATCH * group.size,
        steps=9999,
        precision=options.precision,
        device="cpu",
        shard=way == "FSDP2",
    )
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(quick.model, vocabulary=VOCABULARY, context_length=CONTEXT))
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 100_000).astype(np.uint16)
    task = NextToken(tokens, tokens[:0], CONTEXT)
    (place / way).mkdir(parents=True)
    training = Training(place / way, model, task, settings, group)
    metrics = Metrics(place / way / "metrics.jsonl", Progress())
    model.train()
    return lambda: training._step(metrics).seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120, help="measured steps of each way")
    parser.add_argument("--precision", default="auto", help="dtype of products (default: auto)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
