"""Muon, an optimizer for matrices, and which matrices of a model it is for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers import CrossAttention, GatedFeedForward, MultiHeadAttention

# Of a X + b (X Xᵀ) X + c (X Xᵀ)² X, one line an iteration: the first three of the five of
# modded-nanogpt's medium track (by You Jiacheng). Singular values from 0.01 on come to 0.5 to 1.2.
COEFFICIENTS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037))


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal, for matrices; AdamW for all the rest.

    A matrix W (rows, columns) with gradient G, momentum B and learning rate r becomes

        B ← μ B + (1 − μ) G
        W ← (1 − r λ) W − r √max(1, rows / columns) · orthogonal((1 − μ) G + μ B)

    so each step moves all its directions alike. Sources: Jordan et al. 2024, *Muon: an optimizer
    for hidden layers in neural networks* (kellerjordan.github.io/posts/muon); the decay: Liu et
    al. 2025 (arXiv:2502.16982). Matrices of one shape are made orthogonal together.

    Args:
        matrices: groups of parameters for Muon: `params`, of which `parts` says for each how many
            rows belong to each of the matrices that it holds, as query, key and value in one.
        adamw: the optimizer of the rest. Both have one state, so a checkpoint has all of it.
        momentum: μ.
        weight_decay: λ.

    >>> weight = nn.Parameter(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    >>> weight.grad = torch.tensor([[5.0, 0.0], [0.0, 3.0]])
    >>> groups = [{"params": [weight], "parts": [(2,)], "lr": 0.1}]
    >>> Muon(groups, torch.optim.AdamW([nn.Parameter(torch.ones(1))])).step()
    >>> weight.detach().round(decimals=1)
    tensor([[1.9000, 0.0000],
            [0.0000, 0.9000]])
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        adamw: torch.optim.AdamW,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(matrices, {"momentum": momentum, "weight_decay": weight_decay})
        self.param_groups += adamw.param_groups
        self._adamw = adamw

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of both, by the gradients that are there; a closure is not asked."""
        for group in self.param_groups:
            if "parts" in group:
                self._step(group)
        self._adamw.state = self.state
        self._adamw.param_groups = [group for group in self.param_groups if "parts" not in group]
        self._adamw.step()

    def _step(self, group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for parameter, rows in zip(group["params"], group["parts"], strict=True):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["mean"] = torch.zeros_like(parameter)
            mean = state["mean"].lerp_(parameter.grad, 1 - momentum)
            ahead = parameter.grad.lerp(mean, momentum)  # Nesterov's
            parameter.mul_(1 - rate * group["weight_decay"])
            for part, update in zip(parameter.split(rows), ahead.split(rows), strict=True):
                alike.setdefault(part.shape, []).append((part, update))
        for shape, pairs in alike.items():
            updates = orthogonal(torch.stack([update for _, update in pairs]))
            size = rate * math.sqrt(max(1.0, shape[0] / shape[1]))
            for (part, _), update in zip(pairs, updates, strict=True):
                part.sub_(update, alpha=size)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices (B, n, m) with their singular vectors, and singular values brought near 1.

    Three Newton–Schulz iterations: products alone, B matrices at once, in the type of the matrices.
    A matrix of zeros stays one.

    >>> torch.linalg.svdvals(orthogonal(torch.tensor([[[9.0, 2.0], [0.0, 2.0]]])))
    tensor([[1.2001, 0.7935]])
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for a, b, c in COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def matrices_of(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """The matrices of a model's blocks, and the rows of those that each of them holds.

    A product that makes query, key and value at once holds three matrices. Tables, the output
    layer and what stands outside the blocks are not among them.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=1))
    >>> list(matrices_of(model).values())
    [(12, 12, 12), (12,), (48,), (12,)]
    """
    blocks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    layers = dict.fromkeys(layer for block in blocks for layer in block.modules())
    parts = {id(part): rows for layer in layers for part, rows in _joined(layer)}
    return {
        layer.weight: parts.get(id(layer), (layer.out_features,))
        for layer in layers
        if isinstance(layer, nn.Linear)
    }


def _joined(layer: nn.Module) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """The products of a layer that hold several matrices, and the rows of each."""
    if isinstance(layer, MultiHeadAttention):
        keys = layer.kv_heads * layer.head_width
        return [(layer.projection, (layer.heads * layer.head_width, keys, keys))]
    if isinstance(layer, CrossAttention):
        return [(layer.memory, (layer.heads * layer.head_width,) * 2)]
    if isinstance(layer, GatedFeedForward):
        return [(layer.enter, (layer.output.in_features,) * 2)]
    return []
