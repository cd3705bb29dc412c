"""Muon, an optimizer for matrices, and which matrices of a model it is for."""

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
from heedful.train.parallel import held, is_sharded, joined, local, shared_out

AT_ONCE, MOST_AT_ONCE = 1 << 27, 1 << 29  # numbers that wait to be stacked, by process; in all
# Of a X + b (X Xᵀ) X + c (X Xᵀ)² X, one line an iteration: the first three of the five of
# modded-nanogpt's medium track (by You Jiacheng). Singular values from 0.01 on come to 0.5 to 1.2.
COEFFICIENTS = ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037))

# A matrix: a parameter, the row of it where the matrix begins, and where it shall go
Part: TypeAlias = tuple[Tensor, int, Tensor]


class Muon(AdamW):
    """Momentum whose direction is made orthogonal, for matrices; AdamW for all the rest.

    A matrix W (rows, columns) with gradient G, momentum B and learning rate r becomes

        B ← μ B + (1 − μ) G
        W ← (1 − r λ) W − r √max(1, rows / columns) · orthogonal((1 − μ) G + μ B)

    so each step moves all its directions alike. Sources: Jordan et al. 2024, *Muon: an optimizer
    for hidden layers in neural networks* (kellerjordan.github.io/posts/muon); the decay: Liu et
    al. 2025 (arXiv:2502.16982). Matrices of one shape are made orthogonal together.

    Args:
        groups: of parameters. Those with `parts` are for Muon: for each of its `params` how many
            rows belong to each of the matrices that it holds, as query, key and value in one. The
            others are for AdamW.
        momentum: μ.
        here: where several processes train, the matrices of one shape are shared out among them.
        products: the type in which matrices are made orthogonal, as Jordan has bfloat16; by default
            their own.
        defaults: of `AdamW`.

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
        here: Processes | None = None,
        products: torch.dtype | None = None,
        **defaults: Any,
    ) -> None:
        super().__init__([{"momentum": momentum, **group} for group in groups], **defaults)
        self.here, self.products = here or Processes(), products

    def _step(self, group: dict[str, Any]) -> None:
        if "parts" not in group:
            super()._step(group)
            return
        rows = dict(zip(group["params"], group["parts"], strict=True))
        trained = (parameter for parameter in rows if parameter.grad is not None)
        at_once = min(AT_ONCE * self.here.size, MOST_AT_ONCE)  # each process has something to do
        for turn in some_at_once(trained, at_once):
            ahead = [self._ahead(of, group) for of in turn]
            if any(map(is_sharded, turn)):
                ahead = joined(ahead, [len(of) for of in turn], self.here)
            alike: dict[torch.Size, list[Part]] = {}
            for parameter, directions in zip(turn, ahead, strict=True):
                starts = accumulate(rows[parameter], initial=0)
                for start, part in zip(starts, directions.split(rows[parameter]), strict=False):
                    alike.setdefault(part.shape, []).append((parameter, start, part))
            self._subtract(list(alike.values()), group["lr"])

    def _ahead(self, parameter: Any, group: dict[str, Any]) -> Tensor:
        """Nesterov's direction of the rows that are here; their momentum and decay are done."""
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        gradient = local(parameter.grad)
        mean = local(state["mean"]).lerp_(gradient, 1 - group["momentum"])
        local(parameter).mul_(1 - group["lr"] * group["weight_decay"])
        return gradient.lerp(mean, group["momentum"])

    def _subtract(self, alike: list[list[Part]], rate: float) -> None:
        """Step by the directions of matrices, those of one shape together, made orthogonal."""
        stacks = (torch.stack([part for _, _, part in parts]) for parts in alike)
        for parts, updates in zip(alike, shared_out(self._made, stacks, self.here), strict=True):
            size = rate * math.sqrt(max(1.0, updates.shape[1] / updates.shape[2]))
            for (parameter, start, _), update in zip(parts, updates, strict=True):
                rows, of_rows = held(parameter, start, update)
                rows.sub_(of_rows, alpha=size)

    def _made(self, stack: Tensor) -> Tensor:
        return orthogonal(stack.to(self.products or stack.dtype)).to(stack.dtype)


def some_at_once(tensors: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The tensors in order, a list as soon as it has `most` numbers."""
    turn: list[Tensor] = []
    numbers = 0
    for tensor in tensors:
        turn.append(tensor)
        numbers += tensor.numel()
        if numbers >= most:
            yield turn
            turn, numbers = [], 0
    if turn:
        yield turn


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
    is_long = x.shape[-1] > 2 * x.shape[-2]
    x = _by_squares(x) if is_long else _by_turns(x)
    return x.mT if is_tall else x


def _by_turns(x: Tensor) -> Tensor:
    """The iterations, each on what the one before made."""
    for a, b, c in COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def _by_squares(x: Tensor) -> Tensor:
    """The same for (B, n, m) with n far below m, nearly all of it in products of n × n.

    An iteration is x ← P x, where P is a polynomial of the square S = x xᵀ; so S ← P S P, and only
    all the P together are multiplied with x.
    """
    square = x @ x.mT
    factor = together = _factor(square, *COEFFICIENTS[0])
    for coefficients in COEFFICIENTS[1:]:
        square = factor @ (square @ factor)
        factor = _factor(square, *coefficients)
        together = factor @ together
    return together @ x


def _factor(square: Tensor, a: float, b: float, c: float) -> Tensor:
    """P = a I + b S + c S²."""
    factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor


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
