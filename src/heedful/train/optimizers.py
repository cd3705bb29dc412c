"""The optimizer and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from heedful.train.settings import TrainSettings


def adamw(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); vectors are not decayed."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), fused=True
    )


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The learning rate of a step, counted from 0: warm-up, then decay to `final_rate`.

    The decay "inverse_sqrt" has no end: it falls with the square root of the steps, as in section
    5.3 of Vaswani et al. 2017.

    >>> rates = TrainSettings(steps=30, warmup=10, learning_rate=1.0, decay="linear")
    >>> [round(learning_rate(step, rates), 3) for step in (0, 9, 10, 20, 29)]
    [0.1, 1.0, 1.0, 0.55, 0.145]
    """
    highest, last = settings.learning_rate, settings.final_rate
    if step < settings.warmup:
        return highest * (step + 1) / settings.warmup
    if settings.decay == "constant":
        return highest
    if settings.decay == "inverse_sqrt":
        return highest * math.sqrt(max(1, settings.warmup) / (step + 1))
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    share = 1.0 - done if settings.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return highest * (last + (1.0 - last) * share)
