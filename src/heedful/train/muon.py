"""Muon, an optimizer for the weight matrices of a model's blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from heedful.layers import CrossAttention, GatedFeedForward, MultiHeadAttention
from heedful.processes import Processes
from heedful.train.adamw import AdamW
from heedful.train.parallel import all_gather, is_sharded, local_rows, map_distributed, overlap

AT_ONCE, MOST_AT_ONCE = 1 << 27, 1 << 29  # numbers to orthogonalise at once, per process; in all
# a, b, c of a X + b (X Xᵀ) X + c (X Xᵀ)² X for each iteration: the first three of the five of
# modded-nanogpt's medium track (by You Jiacheng). Singular values ≥ 0.01 end between 0.5 and 1.2.
COEFFICIENTS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037))

# A matrix: its parameter, its first row there, and its direction of descent
Part: TypeAlias = tuple[Tensor, int, Tensor]


class Muon(AdamW):
    """Momentum with orthogonalised directions for matrices; AdamW for all other parameters.

    A matrix W (rows, columns) with gradient G, momentum B and learning rate r becomes

        B ← μ B + (1 − μ) G
        W ← (1 − r λ) W − r √max(1, rows / columns) · orthogonalise((1 − μ) G + μ B)

    so each step has the same size in all directions of the matrix. Sources: Jordan et al. 2024,
    *Muon: an optimizer for hidden layers in neural networks* (kellerjordan.github.io/posts/muon);
    weight decay: Liu et al. 2025 (arXiv:2502.16982). Matrices of one shape are processed together.

    Args:
        groups: parameter groups. A group with `parts` is for Muon: `parts` has, for each of
            `params`, the numbers of rows of the matrices in it, such as a fused query, key and
            value. Groups without `parts` are for AdamW.
        momentum: μ.
        processes: the processes that train together, among which the work is divided.
        products: the type in which matrices are orthogonalised, bfloat16 in Jordan's code; default
            their own.
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
        products: torch.dtype | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__([{"momentum": momentum, **group} for group in groups], **defaults)
        self.processes, self.products = processes or Processes(), products

    def _step(self, group: dict[str, Any]) -> None:
        if "parts" not in group:
            super()._step(group)
            return
        rows = dict(zip(group["params"], group["parts"], strict=True))
        trained = (parameter for parameter in rows if parameter.grad is not None)
        at_once = min(AT_ONCE * self.processes.size, MOST_AT_ONCE)  # work for every process
        for chunk in chunked_by_size(trained, at_once):
            directions = [self._nesterov(parameter, group) for parameter in chunk]
            if any(map(is_sharded, chunk)):
                directions = all_gather(directions, list(map(len, chunk)), self.processes)
            by_shape: dict[torch.Size, list[Part]] = {}
            for parameter, direction in zip(chunk, directions, strict=True):
                starts = accumulate(rows[parameter], initial=0)
                for start, part in zip(starts, direction.split(rows[parameter]), strict=False):
                    by_shape.setdefault(part.shape, []).append((parameter, start, part))
            self._subtract(list(by_shape.values()), group["lr"])

    def _nesterov(self, parameter: Any, group: dict[str, Any]) -> Tensor:
        """Decay the local rows, update their momentum, and return Nesterov's direction."""
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        gradient = local_rows(parameter.grad)
        mean = local_rows(state["mean"]).lerp_(gradient, 1 - group["momentum"])
        local_rows(parameter).mul_(1 - group["lr"] * group["weight_decay"])
        return gradient.lerp(mean, group["momentum"])

    def _subtract(self, by_shape: list[list[Part]], rate: float) -> None:
        """Subtract the orthogonalised directions; each list has matrices of one shape."""
        stacks = (torch.stack([part for _, _, part in parts]) for parts in by_shape)
        results = map_distributed(self._orthogonalised, stacks, self.processes)
        for parts, updates in zip(by_shape, results, strict=True):
            size = rate * math.sqrt(max(1.0, updates.shape[1] / updates.shape[2]))
            for (parameter, start, _), update in zip(parts, updates, strict=True):
                rows, row_updates = overlap(parameter, start, update)
                rows.sub_(row_updates, alpha=size)

    def _orthogonalised(self, stack: Tensor) -> Tensor:
        return orthogonalise(stack.to(self.products or stack.dtype)).to(stack.dtype)


def chunked_by_size(tensors: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield the tensors in lists; a list ends as soon as it has `size` numbers."""
    chunk: list[Tensor] = []
    numbers = 0
    for tensor in tensors:
        chunk.append(tensor)
        numbers += tensor.numel()
        if numbers >= size:
            yield chunk
            chunk, numbers = [], 0
    if chunk:
        yield chunk


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices (B, n, m) near 1; the singular vectors stay the same.

    Three Newton–Schulz iterations: matrix products only, batched, in the type of the matrices. A
    zero matrix stays zero.

    >>> torch.linalg.svdvals(orthogonalise(torch.tensor([[[9.0, 2.0], [0.0, 2.0]]])))
    tensor([[1.2001, 0.7935]])
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    is_long = x.shape[-1] > 2 * x.shape[-2]
    x = _newton_schulz_of_square(x) if is_long else _newton_schulz(x)
    return x.mT if is_tall else x


def _newton_schulz(x: Tensor) -> Tensor:
    """Apply the iterations to x, one after another."""
    for a, b, c in COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def _newton_schulz_of_square(x: Tensor) -> Tensor:
    """Apply the same iterations to (B, n, m) with n far below m, mostly by products of n × n.

    An iteration is x ← P x, where P is a polynomial of the square S = x xᵀ, so that S ← P S P. Only
    the product of all P is multiplied with x.
    """
    square = x @ x.mT
    factor = product = _factor(square, *COEFFICIENTS[0])
    for coefficients in COEFFICIENTS[1:]:
        square = factor @ (square @ factor)
        factor = _factor(square, *coefficients)
        product = factor @ product
    return product @ x


def _factor(square: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return P = a I + b S + c S²."""
    factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor


def block_matrices(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the weight matrices of a model's blocks, each with the row counts of its matrices.

    The fused projection of query, key and value holds three matrices. Embedding tables, the output
    layer and everything outside the blocks are left out.

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
    """Return the projections of a layer that hold several matrices, with the rows of each."""
    if isinstance(layer, MultiHeadAttention):
        keys = layer.kv_heads * layer.head_width
        return [(layer.projection, (layer.heads * layer.head_width, keys, keys))]
    if isinstance(layer, CrossAttention):
        return [(layer.memory, (layer.heads * layer.head_width,) * 2)]
    if isinstance(layer, GatedFeedForward):
        return [(layer.enter, (layer.output.in_features,) * 2)]
    return []
