"""Construction of a run's optimizer, and the schedule of its learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from heedful.layers import ShortConvolution
from heedful.processes import Processes
from heedful.train.adamw import AdamW
from heedful.train.muon import Muon, block_matrices
from heedful.train.settings import TrainSettings


def make_optimizer(
    model: nn.Module,
    settings: TrainSettings,
    processes: Processes | None = None,
    matmul_dtype: torch.dtype | None = None,
) -> AdamW:
    """Return the optimizer that the settings name; call `set_rates` before each of its steps.

    `processes` are the processes that train together, default this one alone. `matmul_dtype` is
    the type in which Muon multiplies matrices, default the type of the parameters.
    """
    adamw: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
    }
    if settings.optimizer == "adamw":
        return AdamW(adamw_groups(model, model.parameters(), settings), **adamw)
    matrices = block_matrices(model)
    group = {
        "params": list(matrices),
        "parts": list(matrices.values()),
        "highest": settings.matrix_rate,
        "weight_decay": settings.matrix_decay,
    }
    others = (parameter for parameter in model.parameters() if parameter not in matrices)
    groups = [group, *adamw_groups(model, others, settings)]
    adamw |= {"processes": processes, "matmul_dtype": matmul_dtype}
    return Muon(groups, momentum=settings.momentum, **adamw)


def adamw_groups(
    model: nn.Module, parameters: Iterable[nn.Parameter], settings: TrainSettings
) -> list[dict[str, Any]]:
    """Return AdamW's parameter groups for the given parameters of a model.

    Vectors have no weight decay. The weights of a short convolution, initially 0, have none either;
    their learning rate is separate.
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
    """Set the learning rates of an optimizer from `make_optimizer` for a step, counted from 0."""
    factor = rate_factor(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = group["highest"] * factor


def rate_factor(step: int, settings: TrainSettings) -> float:
    """Return a step's learning rate as a share of the highest: warm-up, then decay to `final_rate`.

    "inverse_sqrt" falls as one over the square root of the step and ignores `final_rate` (Vaswani
    et al. 2017, section 5.3). "trapezoid" is constant, then falls linearly (Hu et al. 2024,
    *MiniCPM*, arXiv:2404.06395; Hägele et al. 2024, arXiv:2405.18392).

    >>> rates = TrainSettings(steps=20, warmup=2, decay="trapezoid", fall=0.5, final_rate=0.0)
    >>> [round(rate_factor(step, rates), 2) for step in (0, 1, 2, 10, 15, 19)]
    [0.5, 1.0, 1.0, 1.0, 0.5, 0.1]
    """
    final = settings.final_rate
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    if settings.decay == "constant":
        return 1.0
    if settings.decay == "inverse_sqrt":
        return math.sqrt(max(1, settings.warmup) / (step + 1))
    begin = settings.warmup
    if settings.decay == "trapezoid":
        begin = max(begin, settings.steps - round(settings.fall * settings.steps))
    progress = max(0, step - begin) / max(1, settings.steps - begin)
    share = (1 + math.cos(math.pi * progress)) / 2 if settings.decay == "cosine" else 1.0 - progress
    return final + (1.0 - final) * share
