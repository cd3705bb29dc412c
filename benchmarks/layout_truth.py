"""What every layout of attention shares: how it is told apart, and its maps by their definition.

A layout is a module with `forward`, as public code writes it, and `told`, which computes one text
(or window) alone, head by head, as softmax is defined. `told` gives the maps (heads, queries, keys)
and the output; that the output is the one of `forward` is what makes the maps certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

H, D = 3, 4  # heads, and the width of each
C = H * D
N, M = 5, 7  # queries and keys, where they are not the same
RUN = 11  # the seed before each run

Maps = list[list[Tensor]]  # of each call and each sequence, (heads, queries, keys)


class Layout(NamedTuple):
    """A model and what it is given; `axes` is what a user could tell the recorder."""

    make: Callable[[], nn.Module]
    given: Callable[[], tuple]
    training: bool = False
    axes: dict[str, str] | None = None


class Truth(NamedTuple):
    """The output, and the maps, or None where there is none; `others` may be shown instead."""

    output: Any
    calls: Maps | None
    others: tuple[Maps, ...] = ()


def truth_of(model: nn.Module, given: tuple) -> Truth:
    """What the model says of itself, or what its `told` says of each text."""
    if hasattr(model, "truth"):
        return model.truth(*given)
    maps, output = texts(model.told, *given)
    return Truth(output, [maps])


def attends(model: nn.Module) -> set[str]:
    """Names of the modules that attend, and of the model, of which all that it lacks is told."""
    told = {name for name, part in model.named_modules() if name and hasattr(part, "told")}
    return told | {type(model).__name__}


def texts(told: Callable, *given: Tensor, axis: int = 0) -> tuple[list[Tensor], Tensor]:
    """The maps of each text, and their outputs together."""
    each = [told(*one) for one in zip(*(one.unbind(axis) for one in given), strict=True)]
    return [maps for maps, _ in each], torch.stack([output for _, output in each], axis)


def heads(x: Tensor, count: int = H) -> Tensor:
    """(length, heads · width) as (heads, length, width)."""
    return torch.stack(x.chunk(count, dim=-1))


def softmax(scores: Tensor) -> Tensor:
    """Of each row, by its definition."""
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def one(
    query: Tensor, key: Tensor, value: Tensor, bias: Any = 0.0, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One text, head by head: its maps, and the outputs of all heads side by side.

    `bias` is a number or (heads or 1, queries, keys); keys may be of fewer heads.
    """
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
    """-inf for keys after their query; the last query sees all."""
    keys = queries if keys is None else keys
    hidden = torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries
    return torch.zeros(queries, keys, dtype=torch.double).masked_fill(hidden, -math.inf)


def hides(keep: Tensor) -> Tensor:
    """-inf where not kept."""
    return torch.zeros(keep.shape, dtype=torch.double).masked_fill(~keep, -math.inf)


def peaked(model: nn.Module) -> nn.Module:
    """Its projections drawn again, large enough that heads choose."""
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
    """Projections of queries, keys, values and the output, which most layouts have."""

    def __init__(self, width: int = C, keys: int = C, source: int = C) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(C, width), nn.Linear(width, C)
        self.k, self.v = nn.Linear(source, keys), nn.Linear(source, keys)

    def projected(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, of x alone or of x and y."""
        y = x if y is None else y
        return self.q(x), self.k(y), self.v(y)
