"""Training speed of GPT-2's 124 M shape on a GPU, next to nanoGPT and the card's peak.

    python benchmarks/gpu.py --nanogpt ../nanoGPT
    torchrun --standalone --nproc-per-node gpu benchmarks/gpu.py --nanogpt ../nanoGPT
    torchrun --standalone --nproc-per-node gpu benchmarks/gpu.py --shard --batch 32

Both models train in bfloat16, compiled, with AdamW, on random tokens, with a vocabulary of 50,304.
A step includes drawing the batch and moving it to the GPU, forward, backward, clipping, the update
and reading the loss. The two alternate, some steps each, in one process, or in all processes at the
same time; tokens are summed over processes. `--batch` counts the sequences of one process.

A token counts as 6 N + 12 · blocks · width · context FLOP, where N excludes the position embedding,
as in nanoGPT's `estimate_mfu` (and PaLM's appendix B, arXiv:2204.02311). The peak is that of dense
bfloat16 products. Without a GPU a small shape trains in float32 on the CPU.
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
)  # the shape of benchmarks/train.py
# TFLOP/s in bfloat16 without sparsity, by torch's name of the card; the first match applies. From
# nanochat/common.py of nanochat, which cites the data sheets. torchtitan/tools/utils.py agrees on
# the cards that both list, except for the MI300X (1300).
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
    options, group = _arguments(), started()
    device = choose_device("auto", group.local)
    with group.process_group(600, device), tempfile.TemporaryDirectory() as folder:
        ways, parameters = prepare(options, device, group, Path(folder))
        turns = Turns(
            {name: _several(step, options.steps, device) for name, step in ways.items()},
            options.rounds,
        )
        if group.is_first:
            report(turns, options, device, group, parameters)


def prepare(
    options: argparse.Namespace, device: torch.device, group: Processes, folder: Path
) -> tuple[dict[str, Step], int]:
    """Return the step function of each way, and the number of parameters without positions."""
    config = shape(device)
    settings = dataclasses.replace(
        PRESETS["gpt2"].train,
        batch=options.batch * group.size,
        accumulation=1,
        precision=precision(device),
        compile=not options.plain and not options.shard,
        shard=options.shard,
    )
    ways = {}
    ways["heedful"], model = heedful_step(config, settings, folder, device, group)
    number = sum(parameter.numel() for parameter in model.parameters())
    if options.nanogpt:
        peer_shape = {
            "vocab_size": config.vocabulary,
            "block_size": config.context_length,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "bias": True,
        }
        ways["nanoGPT"], peer = nanogpt_step(
            options.nanogpt,
            peer_shape,
            options.batch,
            device,
            precision=precision(device),
            compiles=not options.plain,
            group=group,
        )
        if sum(parameter.numel() for parameter in peer.parameters()) != number:
            raise SystemExit("the models of nanoGPT and heedful differ in the number of parameters")
    return ways, number - config.context_length * config.width


def shape(device: torch.device) -> GPTConfig:
    return GPT2 if device.type == "cuda" else SMALL


def precision(device: torch.device) -> str:
    return "bfloat16" if device.type == "cuda" else "float32"


def _several(step: Step, steps: int, device: torch.device) -> Callable[[], None]:
    """Return a function that performs the steps and waits for the GPU to finish them."""

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
    group: Processes,
    parameters: int,
) -> None:
    config, is_gpu = shape(device), device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else "no GPU: a small shape"
    card_peak = peak(name) if is_gpu else None
    print(f"{name}, on {device.type}; {machine()}, {group.size} process{'es' * (group.size > 1)}")
    print(
        f"{parameters / 1e6:.1f} M parameters and {config.context_length:,} positions, "
        f"{options.batch} × {config.context_length:,} tokens a step in each process; "
        f"{precision(device)}, {_how(options)}"
    )
    tokens = options.batch * config.context_length * group.size
    work = 6 * parameters + 12 * config.layers * config.width * config.context_length
    for way in turns.seconds:
        seconds = turns.median(way) / options.steps
        figures = [
            f"{way:8}",
            f"{seconds * 1e3:8.1f} ms a step",
            f"{tokens / seconds:10,.0f} tokens/s",
        ]
        if "nanoGPT" in turns.seconds:
            figures.append(f"{turns.ratio('nanoGPT', way):.3f} of nanoGPT's")
        if card_peak:
            share = work * tokens / seconds / group.size / (card_peak * 1e12)
            figures.append(f"{share:.3f} of the peak")
        print("  " + "  ".join(figures))
    if card_peak:
        print(f"peak: {card_peak:,.0f} TFLOP/s in bfloat16, dense, of each card")
    elif is_gpu:
        print("the share of the peak is unknown: PEAKS has no entry for this card")


def _how(options: argparse.Namespace) -> str:
    if options.shard:
        return "heedful sharded over the processes (FSDP2), not compiled"
    return "not compiled" if options.plain else "compiled"


def peak(name: str) -> float | None:
    """Return the TFLOP/s of a card, or None if it is not in the table."""
    return next((flops for pattern, flops in PEAKS.items() if re.search(pattern, name)), None)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT to compare with")
    parser.add_argument("--batch", type=int, default=12, help="sequences per step and process")
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--plain", action="store_true", help="do not compile")
    parser.add_argument("--shard", action="store_true", help="shard heedful's weights (FSDP2)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
