"""AdamW, by torch's class and its fused function, without the import of torch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _undecorated(method: Callable) -> Any:
    """Return a method of an optimizer without its decorator, which imports the compiler."""
    return getattr(method, "__wrapped__", method)


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), by torch's fused function.

    torch's own class imports the compiler at its first use, which a short run notices.

    Args:
        groups: dictionaries with `params` and any of the settings below, for this group only.
        lr: learning rate.
        betas: decay rates of the mean of the gradients and of the mean of their squares.
        weight_decay: λ of W ← (1 − lr λ) W.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.tensor([0.5, -3.0])
    >>> AdamW([{"params": [weight]}], lr=0.1, weight_decay=0.0).step()
    >>> weight.detach().round(decimals=4)
    tensor([0.9000, 1.1000])
    """

    add_param_group = _undecorated(torch.optim.AdamW.add_param_group)
    step = torch.no_grad()(_undecorated(torch.optim.AdamW.step))

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(groups, lr, betas, weight_decay=weight_decay, fused=True)
