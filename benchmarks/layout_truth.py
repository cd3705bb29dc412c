"""Shared parts of the layout models: types, and attention computed by its definition.

A layout model has `forward`, written as public code writes it, and `by_definition`, which computes
one sequence (or window) alone, head by head, as softmax is defined. `by_definition` returns the
maps (heads, queries, keys) and the output. Its output must equal the output of `forward`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

H, D = 3, 4  # heads, width of a head
C = H * D
N, M = 5, 7  # numbers of queries and keys where they differ
RUN = 11  # the seed set before each run

Maps = list[list[Tensor]]  # for each call and sequence, a map (heads, queries, keys)


class Layout(NamedTuple):
    """Factories of a model and of its inputs; `axes` is passed to the recorder."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple]
    training: bool = False
    axes: dict[str, str] | None = None


class Truth(NamedTuple):
    """The output and the maps (None without attention); `others` are equally correct maps."""

    output: Any
    calls: Maps | None
    others: tuple[Maps, ...] = ()


def truth_of(model: nn.Module, inputs: tuple) -> Truth:
    """Return the model's `truth`, or apply its `by_definition` to each sequence."""
    if hasattr(model, "truth"):
        return model.truth(*inputs)
    maps, output = per_text(model.by_definition, *inputs)
    return Truth(output, [maps])


def attending_modules(model: nn.Module) -> set[str]:
    """Return the names under which the recorder may report a missed module, the model included."""
    names = {name for name, part in model.named_modules() if hasattr(part, "by_definition")}
    return names - {""} | {type(model).__name__}


def per_text(function: Callable, *inputs: Tensor, axis: int = 0) -> tuple[list[Tensor], Tensor]:
    """Apply a function to each sequence; return the list of maps and the stacked outputs."""
    each = [function(*text) for text in zip(*(x.unbind(axis) for x in inputs), strict=True)]
    return [maps for maps, _ in each], torch.stack([output for _, output in each], axis)


def heads(x: Tensor, count: int = H) -> Tensor:
    """Reshape (length, heads · width) to (heads, length, width)."""
    return torch.stack(x.chunk(count, dim=-1))


def softmax(scores: Tensor) -> Tensor:
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Any = 0.0, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return the maps of a sequence and the concatenated outputs; keys may have fewer heads."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shape = (len(query), query.shape[1], key.shape[1])
    bias = torch.as_tensor(bias, dtype=query.dtype).expand(shape)
    maps, outputs = [], []
    for h in range(len(query)):
        shared = h * len(key) // len(query)
        maps.append(softmax(query[h] @ key[shared].T * scale + bias[h]))
        outputs.append(maps[h] @ value[shared])
    return torch.stack(maps), torch.cat(outputs, dim=-1)


def causal(queries: int, keys: int | None = None) -> Tensor:
    """Return a bias of -inf for keys after their query; the last query attends to all keys."""
    keys = queries if keys is None else keys
    masked = torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries
    return torch.zeros(queries, keys, dtype=torch.double).masked_fill(masked, -math.inf)


def padding_bias(keep: Tensor) -> Tensor:
    """Return a bias of -inf where `keep` is False."""
    return torch.zeros(keep.shape, dtype=torch.double).masked_fill(~keep, -math.inf)


def peaked(model: nn.Module) -> nn.Module:
    """Redraw the projections with a spread that makes the attention of the heads peaked."""
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            _draw(part.weight)
        elif isinstance(part, nn.MultiheadAttention):
            _draw(part.in_proj_weight)
            nn.init.normal_(part.in_proj_bias, std=0.3)
    return model


def _draw(weight: nn.Parameter) -> None:
    nn.init.normal_(weight, std=1.6 * weight[0].numel() ** -0.5)


class Attends(nn.Module):
    """Base class with the four projections that most layouts have."""

    def __init__(self, width: int = C, keys: int = C, source: int = C) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(C, width), nn.Linear(width, C)
        self.k, self.v = nn.Linear(source, keys), nn.Linear(source, keys)

    def projected(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query of x, and the key and value of y (default: of x)."""
        y = x if y is None else y
        return self.q(x), self.k(y), self.v(y)
