"""Muon, an optimizer for the weight matrices of a model's blocks."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from heedful.layers import CrossAttention, GatedFeedForward, MultiHeadAttention
from heedful.processes import Processes
from heedful.train.adamw import AdamW
from heedful.train.parallel import all_gather, is_sharded, local_rows, map_distributed, overlap

# a, b, c of a X + b (X Xᵀ) X + c (X Xᵀ)² X in each iteration: the first three of five in
# modded-nanogpt's medium track (by You Jiacheng). Singular values ≥ 0.01 end between 0.38 and 1.25.
COEFFICIENTS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037))

# A matrix: its parameter, the index of its first row in the parameter, and its descent direction
Part: TypeAlias = tuple[Tensor, int, Tensor]


class Muon(AdamW):
    """Momentum with orthogonalised directions for matrices; AdamW for all other parameters.

    A matrix W (rows, columns) with gradient G, momentum B and learning rate r becomes

        B ← μ B + (1 − μ) G
        W ← (1 − r λ) W − r √max(1, rows / columns) · orthogonalise((1 − μ) G + μ B)

    so an update has nearly equal singular values. Matrices of equal shape are processed together.
    Sources: Jordan et al. 2024, *Muon: an optimizer for hidden layers in neural networks*
    (kellerjordan.github.io/posts/muon); weight decay: Liu et al. 2025 (arXiv:2502.16982).

    Args:
        groups: parameter groups. A group with `parts` is updated by Muon, any other by AdamW.
            `parts` has a tuple for each of `params`: the row counts of the matrices stacked in
            that parameter, such as query, key and value in a fused projection.
        momentum: μ.
        processes: the processes that train together and divide the work; default this one alone.
        matmul_dtype: the type in which matrices are orthogonalised (bfloat16 in Jordan's code);
            default the type of the parameter.
        defaults: arguments of `AdamW`.

    >>> weight = nn.Parameter(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    >>> weight.grad = torch.tensor([[5.0, 0.0], [0.0, 3.0]])
    >>> Muon([{"params": [weight], "parts": [(2,)]}], lr=0.1).step()
    >>> weight.detach().round(decimals=1)
    tensor([[1.9000, 0.0000],
            [0.0000, 0.9000]])
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float = 0.95,
        processes: Processes | None = None,
        matmul_dtype: torch.dtype | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__([{"momentum": momentum, **group} for group in groups], **defaults)
        self.processes, self.matmul_dtype = processes or Processes(), matmul_dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update each parameter by its gradient; `closure` is ignored."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "parts" not in group]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if "parts" in group:
                self._step(group)

    def _step(self, group: dict[str, Any]) -> None:
        rows = dict(zip(group["params"], group["parts"], strict=True))
        trained = [parameter for parameter in rows if parameter.grad is not None]
        directions = [self._nesterov(parameter, group) for parameter in trained]
        if any(map(is_sharded, trained)):
            directions = all_gather(directions, list(map(len, trained)), self.processes)
        by_shape: dict[torch.Size, list[Part]] = {}
        for parameter, direction in zip(trained, directions, strict=True):
            starts = accumulate(rows[parameter], initial=0)
            for start, part in zip(starts, direction.split(rows[parameter]), strict=False):
                by_shape.setdefault(part.shape, []).append((parameter, start, part))
        stacks = (torch.stack([part for _, _, part in parts]) for parts in by_shape.values())
        results = map_distributed(self._orthogonalised, stacks, self.processes)
        for parts, updates in zip(by_shape.values(), results, strict=True):
            size = group["lr"] * math.sqrt(max(1.0, updates.shape[1] / updates.shape[2]))
            for (parameter, start, _), update in zip(parts, updates, strict=True):
                rows_to_update, row_updates = overlap(parameter, start, update)
                rows_to_update.sub_(row_updates, alpha=size)

    def _nesterov(self, parameter: Any, group: dict[str, Any]) -> Tensor:
        """Apply weight decay and update the momentum of local rows; return Nesterov's direction."""
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        gradient = local_rows(parameter.grad)
        mean = local_rows(state["mean"]).lerp_(gradient, 1 - group["momentum"])
        local_rows(parameter).mul_(1 - group["lr"] * group["weight_decay"])
        return gradient.lerp(mean, group["momentum"])

    def _orthogonalised(self, stack: Tensor) -> Tensor:
        return orthogonalise(stack.to(self.matmul_dtype or stack.dtype)).to(stack.dtype)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices (B, n, m) near 1; the singular vectors stay the same.

    Three Newton–Schulz iterations, in the type of the matrices. A zero matrix stays zero.

    >>> torch.linalg.svdvals(orthogonalise(torch.tensor([[[9.0, 2.0], [0.0, 2.0]]])))
    tensor([[1.2001, 0.7935]])
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for a, b, c in COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def block_matrices(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the weights of all linear layers in a model's blocks, with their row counts.

    A fused projection of query, key and value is a stack of three matrices and has three row
    counts. Embedding tables and the output layer are outside the blocks and not included.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=1))
    >>> list(block_matrices(model).values())
    [(12, 12, 12), (12,), (48,), (12,)]
    """
    blocks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    layers = dict.fromkeys(layer for block in blocks for layer in block.modules())
    parts = {id(part): rows for layer in layers for part, rows in _fused(layer)}
    return {
        layer.weight: parts.get(id(layer), (layer.out_features,))
        for layer in layers
        if isinstance(layer, nn.Linear)
    }


def _fused(layer: nn.Module) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Return a layer's projections that stack several matrices, with the row count of each."""
    if isinstance(layer, MultiHeadAttention):
        keys = layer.kv_heads * layer.head_width
        return [(layer.projection, (layer.heads * layer.head_width, keys, keys))]
    if isinstance(layer, CrossAttention):
        return [(layer.memory, (layer.heads * layer.head_width,) * 2)]
    if isinstance(layer, GatedFeedForward):
        return [(layer.enter, (layer.output.in_features,) * 2)]
    return []
