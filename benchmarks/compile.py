"""From how many steps on `--compile` pays: its first step, and what each later one saves.

    python benchmarks/compile.py
    python benchmarks/compile.py --nanogpt ../nanoGPT --optimizer adamw

The shape is that of benchmarks/train.py: 65 characters, 12 × 64 tokens a step, width 128, 4 blocks.
The first step is taken in processes of their own, with torch's cache of compiled code empty (cold)
and filled by the one before (warm). Then plain, compiled and nanoGPT's own steps are taken in
turns, in one process.
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
        stepping(options.first, Path(options.folder), is_compiled=True)()
        print(time.perf_counter() - began)
        return
    print(machine(), flush=True)
    for optimizer in options.optimizer:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (first_step(optimizer, Path(folder)) for _ in range(2))
            report(optimizer, cold, warm, Path(folder), options)


def first_step(optimizer: str, folder: Path) -> float:
    """Seconds of a first compiled step in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--first", optimizer, "--folder", str(folder)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def report(
    optimizer: str, cold: float, warm: float, folder: Path, options: argparse.Namespace
) -> None:
    """The table of one optimizer."""
    ways = {
        "float32": stepping(optimizer, folder, is_compiled=False, precision="float32"),
        "plain": stepping(optimizer, folder, is_compiled=False),
        "compiled": stepping(optimizer, folder, is_compiled=True),
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
            f"  pays from {cold / saved:,.0f} steps on cold, {warm / saved:,.0f} warm", flush=True
        )
    else:
        print("  never pays", flush=True)


def stepping(optimizer: str, folder: Path, is_compiled: bool, precision: str = "auto") -> Step:
    """A function that takes a step of heedful's training, with a model of its own.

    precision: auto is bfloat16 where the machine multiplies it faster.
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
    """A function that takes a step of nanoGPT's training, as its train.py does on a CPU."""
    shape = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": CONTEXT, "bias": False}
    step, _ = nanogpt_step(
        checkout, {"vocab_size": VOCABULARY, **shape}, BATCH, torch.device("cpu")
    )
    return step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, to time beside")
    parser.add_argument("--optimizer", nargs="*", default=["adamw", "muon"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
