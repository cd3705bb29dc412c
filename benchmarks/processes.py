"""Weak scaling: two processes that train one model, beside two that train one each.

    python benchmarks/processes.py [--rounds 5] [--steps 30] [--precision float32]

Both ways have two processes of one thread at the same time, and each process the same sequences in
a batch: what is told between them is all that differs. In turns, a copy in each (DDP), cut among
them (FSDP2) and each alone; tokens per second of both together, by the median step, without the
first steps. The bar: 0.85 of what two that know nothing of each other do.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from forked import forked, free_port
from timing import machine

from heedful.models import GPT
from heedful.processes import Processes
from heedful.torchrun import started
from heedful.train import PRESETS, NextToken, Training
from heedful.train.checkpoint import Metrics, Progress

VOCABULARY, CONTEXT, BATCH, FIRST = 65, 256, 8, 3
WAYS = ("alone", "a copy in each", "cut among them")


def main() -> None:
    options = _arguments()
    torch.set_num_threads(1)  # so that a process can fork
    print(f"{machine()}; 2 processes, {BATCH} × {CONTEXT} tokens in each", flush=True)
    for optimizer in ("adamw", "muon"):
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(options.rounds):
            for way in WAYS if turn % 2 else reversed(WAYS):
                rates[way].append(rate(way, optimizer, options))
        for way in WAYS:
            pairs = zip(rates[way], rates["alone"], strict=True)
            share = statistics.median(one / alone for one, alone in pairs)
            tokens = statistics.median(rates[way])
            print(f"{optimizer:6} {way:16}{tokens:8,.0f} tokens/s  {share:.2f}", flush=True)


def rate(way: str, optimizer: str, options: argparse.Namespace) -> float:
    """Tokens per second of two processes together."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        places = [Path(folder, str(rank)) for rank in range(2)]
        begun = [
            forked(rank, 2, port, lambda place=place: _train(way, optimizer, options, place))
            for rank, place in enumerate(places)
        ]
        for process in begun:
            if os.waitpid(process, 0)[1]:
                raise RuntimeError(f"{way}, {optimizer}: a process failed")
        return sum(float((place / "rate").read_text()) for place in places)


def _train(way: str, optimizer: str, options: argparse.Namespace, place: Path) -> int:
    """Take steps, and write how many tokens of its own the process reads in a second."""
    together = started()
    here = Processes() if way == "alone" else together
    with together.together(60):  # also those alone, so that they begin at the same time
        together.any(False)
        quick = PRESETS["quick"]
        settings = dataclasses.replace(
            quick.train,
            optimizer=optimizer,
            batch=BATCH * here.size,
            steps=9999,
            precision=options.precision,
            device="cpu",
            shard=way == "cut among them",
        )
        torch.manual_seed(0)
        model = GPT(dataclasses.replace(quick.model, vocabulary=VOCABULARY, context_length=CONTEXT))
        tokens = np.random.default_rng(0).integers(0, VOCABULARY, 100_000).astype(np.uint16)
        task = NextToken(tokens, tokens[:0], CONTEXT)
        place.mkdir()
        training = Training(place, model, task, settings, here)
        metrics = Metrics(place / "metrics.jsonl", Progress())
        model.train()
        seconds = [training._step(metrics).seconds for _ in range(FIRST + options.steps)][FIRST:]
        (place / "rate").write_text(str(BATCH * CONTEXT / statistics.median(seconds)))
        together.any(False)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way")
    parser.add_argument("--steps", type=int, default=30, help="measured steps of a turn")
    parser.add_argument("--precision", default="auto", help="of the products: heedful's own choice")
    return parser.parse_args()


if __name__ == "__main__":
    main()
