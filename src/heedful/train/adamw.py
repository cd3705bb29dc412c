"""AdamW, by torch's fused function, without the import of torch's compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from heedful.train.parallel import local_rows

Optimizer = torch.optim.Optimizer


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), by torch's fused function.

    Updates equal those of `torch.optim.AdamW(fused=True)` bit for bit, and the state has the same
    names. torch's class imports the compiler at its first use, which raised the processor time of
    a run of 190 steps (12 × 64 tokens, one thread) to 1.14 times (median of three pairs). If a
    weight is sharded, each process updates only its local rows.

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

    # the undecorated method: the decorator imports the compiler
    add_param_group = getattr(Optimizer.add_param_group, "__wrapped__", Optimizer.add_param_group)

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update each parameter by its gradient; `closure` is ignored."""
        for group in self.param_groups:
            self._step(group)

    def _step(self, group: dict[str, Any]) -> None:
        parameters = [tensor for tensor in group["params"] if tensor.grad is not None]
        if not parameters:
            return
        states = [self._state_of(parameter) for parameter in parameters]
        means, squares, steps = (
            [local_rows(s[name]) for s in states] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        beta1, beta2 = group["betas"]
        adamw(
            [local_rows(parameter) for parameter in parameters],
            [local_rows(parameter.grad) for parameter in parameters],
            means, squares, [], steps, fused=True, amsgrad=False, beta1=beta1, beta2=beta2,
            lr=group["lr"], weight_decay=group["weight_decay"], eps=1e-8, maximize=False,
        )  # fmt: skip

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state
