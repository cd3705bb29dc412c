"""Number of training steps from which `--compile` saves time.

    python benchmarks/compile.py
    python benchmarks/compile.py --nanogpt ../nanoGPT --optimizer adamw

The shape is that of benchmarks/train.py: 65 characters, 12 × 64 tokens a step, width 128, 4 blocks.
The first compiled step runs in a new process, once with an empty cache of compiled code (cold) and
once with the cache of the cold run (warm). Then steps alternate in one process: plain in float32,
plain and compiled in the precision "auto", and those of nanoGPT, if given.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from stepping import Step, heedful_step, nanogpt_step
from timing import Turns, machine

from heedful.train import PRESETS

VOCABULARY, CONTEXT, BATCH = 65, 64, 12


def main() -> None:
    options = _arguments()
    if options.first:
        began = time.perf_counter()
        training_step(options.first, Path(options.folder), is_compiled=True)()
        print(time.perf_counter() - began)
        return
    print(machine(), flush=True)
    for optimizer in options.optimizer:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (first_step(optimizer, Path(folder)) for _ in range(2))
            report(optimizer, cold, warm, Path(folder), options)


def first_step(optimizer: str, folder: Path) -> float:
    """Return the seconds of the first compiled step in a new process."""
    result = subprocess.run(
        [sys.executable, __file__, "--first", optimizer, "--folder", str(folder)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout)


def report(
    optimizer: str, cold: float, warm: float, folder: Path, options: argparse.Namespace
) -> None:
    ways = {
        "float32": training_step(optimizer, folder, is_compiled=False, precision="float32"),
        "plain": training_step(optimizer, folder, is_compiled=False),
        "compiled": training_step(optimizer, folder, is_compiled=True),
    }
    if options.nanogpt:
        ways["nanoGPT"] = nanogpt(options.nanogpt)
    ways["compiled"]()
    turns = Turns(ways, options.rounds)
    print(f"{optimizer}: first compiled step {cold:.1f} s cold, {warm:.1f} s warm")
    for name in ways:
        share = f"  {turns.ratio(name, 'nanoGPT'):.2f} of nanoGPT's" if options.nanogpt else ""
        print(f"  {name:10}{turns.median(name) * 1e3:7.1f} ms a step{share}")
    saved = turns.median("plain") - turns.median("compiled")
    if saved > 0:
        print(
            f"  pays off after {cold / saved:,.0f} steps cold, {warm / saved:,.0f} warm", flush=True
        )
    else:
        print("  never pays off", flush=True)


def training_step(optimizer: str, folder: Path, is_compiled: bool, precision: str = "auto") -> Step:
    """Return a function that performs a training step of a new model of heedful.

    With the precision "auto", products are in bfloat16 if the machine computes them faster.
    """
    quick = PRESETS["quick"]
    settings = dataclasses.replace(
        quick.train,
        optimizer=optimizer,
        batch=BATCH,
        compile=is_compiled,
        precision=precision,
        device="cpu",
        steps=9999,
    )
    model = dataclasses.replace(quick.model, vocabulary=VOCABULARY, context_length=CONTEXT)
    step, _ = heedful_step(model, settings, folder)
    return step


def nanogpt(checkout: Path) -> Step:
    """Return a function that performs a training step as nanoGPT's train.py does on a CPU."""
    shape = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": CONTEXT, "bias": False}
    step, _ = nanogpt_step(
        checkout, {"vocab_size": VOCABULARY, **shape}, BATCH, torch.device("cpu")
    )
    return step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT to compare with")
    parser.add_argument("--optimizer", nargs="*", default=["adamw", "muon"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
