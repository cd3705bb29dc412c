"""The optimizer of a run, and how its learning rates go over the steps."""

from __future__ import annotations

import math

import torch
from torch import nn

from heedful.train.muon import Muon, matrices_of
from heedful.train.settings import TrainSettings


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """The optimizer that the settings ask for; `set_rates` gives it the rates of a step."""
    if settings.optimizer == "adamw":
        return adamw(list(model.parameters()), settings)
    matrices = matrices_of(model)
    rest = [p for p in model.parameters() if p not in matrices]
    group = {
        "params": list(matrices),
        "parts": list(matrices.values()),
        "highest": settings.matrix_rate,
    }
    return Muon(
        [group],
        adamw(rest, settings),
        momentum=settings.momentum,
        weight_decay=settings.matrix_decay,
    )


def adamw(parameters: list[nn.Parameter], settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); vectors are not decayed."""
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    rate = settings.learning_rate
    return torch.optim.AdamW(
        [{**group, "highest": rate} for group in groups],
        lr=rate,
        betas=(settings.beta1, settings.beta2),
        fused=True,
    )


def set_rates(optimizer: torch.optim.Optimizer, step: int, settings: TrainSettings) -> None:
    """Give each group of parameters its learning rate of a step."""
    share = share_of_rate(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = group["highest"] * share


def slower(settings: TrainSettings) -> str:
    """The options that give a run a third of its learning rates, and AdamW at most 0.001.

    >>> slower(TrainSettings(optimizer="muon", learning_rate=0.06, matrix_rate=0.6))
    '--learning-rate 0.001 --matrix-rate 0.2'
    """
    options = f"--learning-rate {min(settings.learning_rate / 3, 1e-3):.1g}"
    if settings.optimizer == "muon":
        options += f" --matrix-rate {settings.matrix_rate / 3:.1g}"
    return options


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The learning rate of a step, counted from 0.

    >>> rates = TrainSettings(steps=30, warmup=10, learning_rate=1.0, decay="linear")
    >>> [round(learning_rate(step, rates), 3) for step in (0, 9, 10, 20, 29)]
    [0.1, 1.0, 1.0, 0.55, 0.145]
    """
    return settings.learning_rate * share_of_rate(step, settings)


def share_of_rate(step: int, settings: TrainSettings) -> float:
    """What share of the highest learning rate a step has: warm-up, then the fall to `final_rate`.

    The decay "inverse_sqrt" has no end: it falls with the square root of the steps, as in section
    5.3 of Vaswani et al. 2017. A "trapezoid" stays at its highest, then falls in a line: Hu et al.
    2024, *MiniCPM* (arXiv:2404.06395), and Hägele et al. 2024 (arXiv:2405.18392).

    >>> rates = TrainSettings(steps=20, warmup=2, decay="trapezoid", fall=0.5, final_rate=0.0)
    >>> [round(share_of_rate(step, rates), 2) for step in (0, 1, 2, 10, 15, 19)]
    [0.5, 1.0, 1.0, 1.0, 0.5, 0.1]
    """
    last = settings.final_rate
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    if settings.decay == "constant":
        return 1.0
    if settings.decay == "inverse_sqrt":
        return math.sqrt(max(1, settings.warmup) / (step + 1))
    begin = settings.warmup
    if settings.decay == "trapezoid":
        begin = max(begin, settings.steps - round(settings.fall * settings.steps))
    done = max(0, step - begin) / max(1, settings.steps - begin)
    share = (1 + math.cos(math.pi * done)) / 2 if settings.decay == "cosine" else 1.0 - done
    return last + (1.0 - last) * share
