"""Functions that perform one training step, of a heedful model and of nanoGPT's equal model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heedful.models import GPT, GPTConfig
from heedful.processes import Processes
from heedful.train import NextToken, Training
from heedful.train.metrics import Metrics, Progress
from heedful.train.run import zero_output_projections
from heedful.train.settings import TrainSettings

Step = Callable[[], object]


def heedful_step(
    config: GPTConfig,
    settings: TrainSettings,
    folder: Path,
    device: torch.device | None = None,
    group: Processes | None = None,
) -> tuple[Step, nn.Module]:
    """Return a function that performs a training step on random tokens, and its model.

    Args:
        device: the device of the model; the CPU by default.
        group: the processes that train together; this process alone by default.
    """
    group = group or Processes()
    torch.manual_seed(0)
    model = GPT(config)
    if settings.initial == "zero":
        zero_output_projections(model)
    if group.is_single or not settings.shard:  # FSDP2 moves its shards itself
        model.to(device)
    tokens = np.random.default_rng(0).integers(0, config.vocabulary, 100_000).astype(np.uint16)
    task = NextToken(tokens, tokens[:0], config.context_length)
    training = Training(folder, model, task, settings, group, device)
    metrics = Metrics(folder / "metrics.jsonl", Progress(), is_writer=group.is_first)
    model.train()
    return lambda: training._step(metrics), model


def nanogpt_step(
    checkout: Path,
    shape: dict[str, Any],
    batch: int,
    device: torch.device,
    *,
    precision: str = "float32",
    compiles: bool = False,
    group: Processes | None = None,
) -> tuple[Step, nn.Module]:
    """Return a function that performs a training step as nanoGPT's train.py does, and its model.

    Args:
        checkout: a checkout of nanoGPT.
        shape: arguments of its configuration.
        batch: sequences per step of this process.
        precision: the type of matrix products; weights are float32.
        group: the processes that train together; this process alone by default.
    """
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    import model as nanogpt

    group = group or Processes()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(None):  # it prints the number of parameters
        model = nanogpt.GPT(nanogpt.GPTConfig(dropout=0.0, **shape)).to(device)
        optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
    run = torch.compile(model) if compiles else model
    if not group.is_single:
        run = nn.parallel.DistributedDataParallel(run)
    draw = torch.Generator().manual_seed(group.rank)
    size = batch, shape["block_size"] + 1

    def step() -> None:
        ids = torch.randint(0, shape["vocab_size"], size, generator=draw).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            _, loss = run(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step, model
