"""Attention together with statistics of its weights, in memory linear in N and M."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.arguments import Arguments, check
from heedful.ops.dispatch import attend
from heedful.ops.indexing import ALL
from heedful.ops.inputs import AttentionInputs
from heedful.ops.mask_base import parts_of
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Padding, Window
from heedful.ops.numpy_arrays import ARGUMENTS, takes_arrays
from heedful.ops.sdpa import four_axes
from heedful.ops.statistics import (
    Diagonal,
    Distance,
    Entropy,
    LargestWeight,
    LogSumExp,
    Received,
    Sink,
    Statistic,
    gather,
)

# Masks without an N × M table, the same for every sequence and head
STRUCTURES = (Causal, KeyRanges, Window)
# For each name, a function that creates the statistic; its argument is the first real key
STATISTICS: dict[str, Callable[[int], Statistic]] = {
    "received": lambda first: Received(),
    "entropy": lambda first: Entropy(),
    "largest": lambda first: LargestWeight(),
    "distance": lambda first: Distance(),
    "self": lambda first: Diagonal(0),
    "previous": lambda first: Diagonal(1),
    "sink": Sink,
}


class Streamed(NamedTuple):
    """The output of attention, with statistics of its weights.

    output: (..., N, v), with gradients.
    log_sum_exp: (..., N), of each row's scores; NaN for a query that may attend to no key.
    statistics: by name, (..., N) each, but (..., M) for "received".
    """

    output: Tensor
    log_sum_exp: Tensor
    statistics: dict[str, Tensor]


@takes_arrays(*ARGUMENTS)
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
    """Compute `heedful.attention` and statistics of its weights, without the full weights.

    The output and its gradients are those of `heedful.attention`. The statistics are computed in
    blocks of rows, without gradients. NumPy arrays in, NumPy arrays out.

    Args:
        query, key, value, mask, bias, causal, scale: as in `heedful.attention`. A mask of your own
            class is built in full.
        statistics: names in `STATISTICS`, defined in `heedful.ops.statistics`: "received",
            "entropy", "largest", "distance", "self", "previous" and "sink", which is the weight
            on the first key that `Padding` and tensor masks allow for some query.

    Returns:
        `Streamed(output, log_sum_exp, statistics)`.

    Raises:
        ArgumentError: an unknown statistic, or an error of `heedful.attention`.

    >>> query = key = value = torch.eye(3)
    >>> result = streaming_attention(query, key, value, causal=True, scale=1.0)
    >>> result.statistics["entropy"]
    tensor([0.0000, 0.5822, 0.9753])
    """
    unknown = [name for name in statistics if name not in STATISTICS]
    if unknown:
        raise ArgumentError(f"statistic {unknown[0]!r}", expected=", ".join(STATISTICS))
    arguments = check(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, dropout=0.0
    )
    output = attend(arguments)
    lead = arguments.shape[:-2]
    with torch.no_grad():
        results = [
            gather(inputs, LogSumExp(), *(STATISTICS[name](first) for name in statistics))
            for inputs, first in _inputs(arguments)
        ]
    columns = zip(*results, strict=True)
    totals, *others = (torch.stack(column).reshape(*lead, -1) for column in columns)
    totals = totals.masked_fill(totals == -torch.inf, torch.nan)
    return Streamed(output, totals, dict(zip(statistics, others, strict=True)))


def _inputs(arguments: Arguments) -> list[tuple[AttentionInputs, int]]:
    """Return the attention inputs and the first real key of each sequence of the batch."""
    shape, parts = arguments.shape, parts_of(arguments.mask)
    query, key = (four_axes(tensor.detach(), shape[:-2]) for tensor in arguments[:2])

    def of_sequences(table: Tensor) -> Tensor:
        return four_axes(table, shape[:-2]).expand(len(query), -1, -1, -1)

    bias = None if arguments.bias is None else of_sequences(arguments.bias.detach())
    structures = [part for part in parts if isinstance(part, STRUCTURES)]
    # (B, H or 1, N or 1, M): padding is the same for every query, so N is 1
    tables = [
        of_sequences(part.crop(shape, slice(0, 1) if isinstance(part, Padding) else ALL))
        for part in parts
        if not isinstance(part, STRUCTURES)
    ]
    result = []
    for b in range(len(query)):
        dense = [Dense(table[b]) for table in tables]
        mask = Combined((*structures, *dense)) if parts else None
        sequence_bias = None if bias is None else bias[b]
        inputs = AttentionInputs(query[b], key[b], arguments.scale, mask, sequence_bias)
        # the first real key: the first key that each table allows for some query
        is_real = [part.table.any(dim=(0, 1)) for part in dense]
        first = int(torch.stack(is_real).all(dim=0).int().argmax()) if dense else 0
        result.append((inputs, first))
    return result
