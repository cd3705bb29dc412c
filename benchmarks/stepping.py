"""Functions that take a step of training: heedful's, and nanoGPT's of the same shape."""

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
from heedful.train.run import begin_with_zeros
from heedful.train.settings import TrainSettings

Step = Callable[[], object]


def heedful_step(
    config: GPTConfig,
    settings: TrainSettings,
    folder: Path,
    device: torch.device | None = None,
    here: Processes | None = None,
) -> tuple[Step, nn.Module]:
    """A function that takes a step on random tokens, and its model.

    Args:
        device: where it is; the CPU by default.
        here: which of several processes takes it, all at the same time.
    """
    here = here or Processes()
    torch.manual_seed(0)
    model = GPT(config)
    if settings.initial == "zero":
        begin_with_zeros(model)
    if here.is_alone or not settings.shard:  # what is cut comes to the device in parts
        model.to(device)
    tokens = np.random.default_rng(0).integers(0, config.vocabulary, 100_000).astype(np.uint16)
    task = NextToken(tokens, tokens[:0], config.context_length)
    training = Training(folder, model, task, settings, here, device)
    metrics = Metrics(folder / "metrics.jsonl", Progress(), is_writer=here.is_first)
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
    here: Processes | None = None,
) -> tuple[Step, nn.Module]:
    """A function that takes a step of nanoGPT's training as its train.py does, and its model.

    Args:
        checkout: a checkout of nanoGPT.
        shape: arguments of its configuration.
        batch: sequences of this process.
        precision: of the products, with weights in float32.
        here: which of several processes takes it, all at the same time.
    """
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    import model as theirs

    here = here or Processes()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(None):  # it says what it is made of
        model = theirs.GPT(theirs.GPTConfig(dropout=0.0, **shape)).to(device)
        optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
    run = torch.compile(model) if compiles else model
    if not here.is_alone:
        run = nn.parallel.DistributedDataParallel(run)
    draw = torch.Generator().manual_seed(here.rank)
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
