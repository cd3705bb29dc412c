"""Attention and statistics of its weights together, in memory that grows with N, not N × M."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.arguments import Arguments, check
from heedful.ops.blocks import Block
from heedful.ops.causes import Causes
from heedful.ops.fused import four_axes, fused
from heedful.ops.masks import Dense, Mask
from heedful.ops.statistics import (
    Diagonal,
    Distance,
    Entropy,
    LargestWeight,
    Received,
    RowStatistic,
    Sink,
    Statistic,
    gather,
)


class LogSumExp(RowStatistic):
    """log Σₘ exp(score) of each row: with it, any weight is exp(score − log-sum-exp)."""

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        return block.total


STATISTICS: dict[str, Callable[[], Statistic]] = {
    "received": Received,
    "entropy": Entropy,
    "largest": LargestWeight,
    "distance": Distance,
    "self": lambda: Diagonal(0),
    "previous": lambda: Diagonal(1),
    "sink": Sink,
}


class Streamed(NamedTuple):
    """What attention gave, and what its weights were like.

    output: (..., N, value width), with gradients.
    log_sum_exp: (..., N), NaN in rows that may attend to nothing.
    statistics: by name, (..., N) each, and (..., M) for "received".
    """

    output: Tensor
    log_sum_exp: Tensor
    statistics: dict[str, Tensor]


def streaming_attention(
    query: Float[Tensor, "*lead queries width"],
    key: Float[Tensor, "*key_lead keys width"],
    value: Float[Tensor, "*value_lead keys value_width"],
    *,
    mask: Tensor | Mask | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    statistics: Sequence[str] = ("received", "entropy"),
) -> Streamed:
    """`heedful.attention`, with statistics of the weights that it never makes whole.

    The output comes from the same fused kernel, with its gradients; the statistics are gathered by
    blocks of rows, without gradients.

    Args:
        query, key, value, mask, bias, causal, scale: as in `heedful.attention`.
        statistics: names among `STATISTICS`, defined in `heedful.ops.statistics`.

    Raises:
        ArgumentError: shapes that do not fit, or a statistic that does not exist.

    >>> query = key = value = torch.eye(3)
    >>> found = streaming_attention(query, key, value, causal=True, scale=1.0)
    >>> found.statistics["entropy"]
    tensor([0.0000, 0.5822, 0.9753])
    """
    unknown = [name for name in statistics if name not in STATISTICS]
    if unknown:
        raise ArgumentError(f"statistic {unknown[0]!r}", expected=", ".join(STATISTICS))
    arguments = check(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, dropout=0.0
    )
    output = fused(arguments)
    lead = arguments.shape[:-2]
    with torch.no_grad():
        found = [
            gather(causes, LogSumExp(), *(STATISTICS[name]() for name in statistics))
            for causes in _causes(arguments)
        ]
    totals, *others = (torch.stack(parts).reshape(*lead, -1) for parts in zip(*found, strict=True))
    return Streamed(output, totals, dict(zip(statistics, others, strict=True)))


def _causes(arguments: Arguments) -> list[Causes]:
    """What the weights of each sequence of the batch are a function of."""
    lead = arguments.shape[:-2]
    query, key = (four_axes(tensor.detach(), lead) for tensor in arguments[:2])
    bias = None if arguments.bias is None else four_axes(arguments.bias.detach(), lead)
    return [
        Causes(
            query[b],
            key[b],
            arguments.scale,
            _mask(arguments, b),
            None if bias is None else bias[b if len(bias) > 1 else 0],
        )
        for b in range(len(query))
    ]


def _mask(arguments: Arguments, sequence: int) -> Mask | None:
    """The mask of one sequence: a structure as it is, where it has no batch."""
    mask: Any = arguments.mask
    if mask is None or mask.device is None:
        return mask
    lead = arguments.shape[:-2]
    table = four_axes(mask.crop(arguments.shape), lead)
    return Dense(table[sequence if len(table) > 1 else 0])
