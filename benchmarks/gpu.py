"""Training GPT-2's 124 M shape on a GPU: tokens a second, share of the card's peak, and nanoGPT's.

    python benchmarks/gpu.py --nanogpt ../nanoGPT
    torchrun --standalone --nproc-per-node gpu benchmarks/gpu.py --nanogpt ../nanoGPT
    torchrun --standalone --nproc-per-node gpu benchmarks/gpu.py --shard --batch 32

bfloat16 and compiled, both with AdamW, random tokens, the same shape with a table of 50,304 rows.
A step is whole: the batch drawn and brought to the GPU, forward, backward, clipping, the update,
the loss read. The ways take turns, some steps each, in one process, or in all processes at the same
time: then tokens are those of all. `--batch` is that of one process.

A token counts 6 N + 12 · blocks · width · context FLOP, N without the table of positions, as in
nanoGPT's `estimate_mfu` (and PaLM's appendix B, arXiv:2204.02311); the peak is that of dense
products in bfloat16. Without a GPU the same runs in float32 on the CPU, with a small shape.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stepping import Step, heedful_step, nanogpt_step
from timing import Turns, machine

from heedful.device import choose_device
from heedful.models import GPTConfig
from heedful.processes import Processes
from heedful.torchrun import started
from heedful.train import PRESETS

GPT2 = dataclasses.replace(PRESETS["gpt2"].model, vocabulary=50_304)
SMALL = dataclasses.replace(
    GPT2, vocabulary=65, context_length=64, width=128, layers=4, heads=4
)  # of benchmarks/train.py
# A card by what torch calls it, and its TFLOP a second in bfloat16 without sparsity; the first that
# is found counts. From nanochat's nanochat/common.py, which torchtitan's torchtitan/tools/utils.py
# agrees with where it has the card (MI300X: 1300); it names the makers' data sheets
PEAKS = {
    r"\bGB200\b": 2500,
    r"\bB200\b": 2250,
    r"\bH200 NVL\b": 836,
    r"\bH200\b": 989,
    r"\bH100 NVL\b": 835,
    r"\bH100 PCIe\b": 756,
    r"\bH100\b": 989,
    r"\bA100\b": 312,
    r"\bL40S\b": 362,
    r"\bL4\b": 121,
    r"\bRTX 4090$": 165.2,
    r"\bRTX 3090$": 71,
    r"\bMI300X\b": 1307.4,
}


def main() -> None:
    options, here = _arguments(), started()
    device = choose_device("auto", here.local)
    with here.together(600, device), tempfile.TemporaryDirectory() as folder:
        ways, parameters = made(options, device, here, Path(folder))
        turns = Turns(
            {name: _several(step, options.steps, device) for name, step in ways.items()},
            options.rounds,
        )
        if here.is_first:
            report(turns, options, device, here, parameters)


def made(
    options: argparse.Namespace, device: torch.device, here: Processes, folder: Path
) -> tuple[dict[str, Step], int]:
    """Each way's step, and the parameters of their model, but for its positions."""
    config = shape(device)
    settings = dataclasses.replace(
        PRESETS["gpt2"].train,
        batch=options.batch * here.size,
        accumulation=1,
        precision=precision(device),
        compile=not options.plain and not options.shard,
        shard=options.shard,
    )
    ways = {}
    ways["heedful"], model = heedful_step(config, settings, folder, device, here)
    number = sum(parameter.numel() for parameter in model.parameters())
    if options.nanogpt:
        theirs = {
            "vocab_size": config.vocabulary,
            "block_size": config.context_length,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "bias": True,
        }
        ways["nanoGPT"], peer = nanogpt_step(
            options.nanogpt,
            theirs,
            options.batch,
            device,
            precision=precision(device),
            compiles=not options.plain,
            here=here,
        )
        if sum(parameter.numel() for parameter in peer.parameters()) != number:
            raise SystemExit("nanoGPT's model has not the shape that it had")
    return ways, number - config.context_length * config.width


def shape(device: torch.device) -> GPTConfig:
    """GPT-2's on a GPU, elsewhere one that takes no minutes."""
    return GPT2 if device.type == "cuda" else SMALL


def precision(device: torch.device) -> str:
    """The number type of the products."""
    return "bfloat16" if device.type == "cuda" else "float32"


def _several(step: Step, steps: int, device: torch.device) -> Callable[[], None]:
    """So many steps, and what the GPU has still to do of them."""

    def take() -> None:
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return take


def report(
    turns: Turns,
    options: argparse.Namespace,
    device: torch.device,
    here: Processes,
    parameters: int,
) -> None:
    """The table, and what it was measured on."""
    config, is_gpu = shape(device), device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else "no such GPU here: a small shape"
    found = peak(name) if is_gpu else None
    print(f"{name}, on {device.type}; {machine()}, {here.size} process{'es' * (here.size > 1)}")
    print(
        f"{parameters / 1e6:.1f} M parameters and {config.context_length:,} positions, "
        f"{options.batch} × {config.context_length:,} tokens a step in each process; "
        f"{precision(device)}, {_how(options)}"
    )
    tokens = options.batch * config.context_length * here.size
    work = 6 * parameters + 12 * config.layers * config.width * config.context_length
    for way in turns.seconds:
        seconds = turns.median(way) / options.steps
        said = [
            f"{way:8}",
            f"{seconds * 1e3:8.1f} ms a step",
            f"{tokens / seconds:10,.0f} tokens/s",
        ]
        if "nanoGPT" in turns.seconds:
            said.append(f"{turns.ratio('nanoGPT', way):.3f} of nanoGPT's")
        if found:
            share = work * tokens / seconds / here.size / (found * 1e12)
            said.append(f"{share:.3f} of the peak")
        print("  " + "  ".join(said))
    if found:
        print(f"peak: {found:,.0f} TFLOP/s in bfloat16, dense, of each card")
    elif is_gpu:
        print("the card's peak is not in this file's table: no share of it is given")


def _how(options: argparse.Namespace) -> str:
    if options.shard:
        return "heedful cut among the processes (FSDP2) and not compiled"
    return "not compiled" if options.plain else "compiled"


def peak(name: str) -> float | None:
    """A card's TFLOP a second; None of one that is not in the table."""
    return next((most for pattern, most in PEAKS.items() if re.search(pattern, name)), None)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, to time beside")
    parser.add_argument("--batch", type=int, default=12, help="sequences of a process")
    parser.add_argument("--steps", type=int, default=10, help="of a way in each round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--plain", action="store_true", help="not compiled")
    parser.add_argument("--shard", action="store_true", help="heedful's weights cut: FSDP2")
    return parser.parse_args()


if __name__ == "__main__":
    main()
