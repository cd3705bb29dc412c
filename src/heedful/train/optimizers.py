"""The optimizer of a run, and its learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from heedful.layers import ShortConvolution
from heedful.processes import Processes
from heedful.train.adamw import AdamW
from heedful.train.muon import Muon, matrices_of
from heedful.train.settings import TrainSettings


def make_optimizer(
    model: nn.Module,
    settings: TrainSettings,
    here: Processes | None = None,
    products: torch.dtype | None = None,
) -> AdamW:
    """The optimizer of the settings; `set_rates` gives it the learning rates of a step.

    `here` is this process, where several train the model together; `products` the type in which
    Muon multiplies matrices, by default their own.
    """
    defaults: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
    }
    if settings.optimizer == "adamw":
        return AdamW(groups_of(model, model.parameters(), settings), **defaults)
    matrices = matrices_of(model)
    group = {
        "params": list(matrices),
        "parts": list(matrices.values()),
        "highest": settings.matrix_rate,
        "weight_decay": settings.matrix_decay,
    }
    rest = (parameter for parameter in model.parameters() if parameter not in matrices)
    groups = [group, *groups_of(model, rest, settings)]
    return Muon(groups, momentum=settings.momentum, here=here, products=products, **defaults)


def groups_of(
    model: nn.Module, parameters: Iterable[nn.Parameter], settings: TrainSettings
) -> list[dict[str, Any]]:
    """AdamW's groups of some of a model's parameters.

    Vectors are not decayed; those of a short convolution, which begin at 0, have a rate of their
    own.
    """
    convolved = {
        weight
        for layer in model.modules()
        if isinstance(layer, ShortConvolution)
        for weight in layer.parameters()
    }
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": settings.weight_decay, "highest": settings.learning_rate},
        {"params": [], "weight_decay": 0.0, "highest": settings.learning_rate},
        {"params": [], "weight_decay": 0.0, "highest": settings.convolution_rate},
    ]
    for parameter in parameters:
        group = 2 if parameter in convolved else int(parameter.ndim < 2)
        groups[group]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def set_rates(optimizer: torch.optim.Optimizer, step: int, settings: TrainSettings) -> None:
    """Give each group of an optimizer from `make_optimizer` its learning rate at a step, from 0."""
    share = share_of_rate(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = group["highest"] * share


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
