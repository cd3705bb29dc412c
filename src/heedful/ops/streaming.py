"""Attention and statistics of its weights together, in memory that grows with N, not N × M."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.arguments import Arguments, check
from heedful.ops.dispatch import attend
from heedful.ops.indexing import ALL, Shape
from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Combined, Dense, KeyRanges, Mask, Padding
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

# A name, and a statistic made for a sequence whose first key that is no padding is `first`
STATISTICS: dict[str, Callable[[int], Statistic]] = {
    "received": lambda first: Received(),
    "entropy": lambda first: Entropy(),
    "largest": lambda first: LargestWeight(),
    "distance": lambda first: Distance(),
    "self": lambda first: Diagonal(0, first),
    "previous": lambda first: Diagonal(1, first),
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
    """`heedful.attention`, with statistics of the weights that it never makes whole.

    The output comes from the same fused kernel, with its gradients; the statistics are gathered by
    blocks of rows, without gradients. NumPy arrays give NumPy arrays.

    Args:
        query, key, value, mask, bias, causal, scale: as in `heedful.attention`.
        statistics: names among `STATISTICS`, defined in `heedful.ops.statistics`. "sink" is the
            weight on the first key that the mask does not hide from every query, as it does with
            padding on the left.

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
    output = attend(arguments)
    lead = arguments.shape[:-2]
    with torch.no_grad():
        found = [
            gather(causes, LogSumExp(), *(STATISTICS[name](first) for name in statistics))
            for causes, first in _causes(arguments)
        ]
    totals, *others = (torch.stack(parts).reshape(*lead, -1) for parts in zip(*found, strict=True))
    totals = totals.masked_fill(totals == -torch.inf, torch.nan)
    return Streamed(output, totals, dict(zip(statistics, others, strict=True)))


def _causes(arguments: Arguments) -> list[tuple[AttentionInputs, int]]:
    """What the weights are a function of, and the first key that is no padding, per sequence."""
    lead = arguments.shape[:-2]
    query, key = (four_axes(tensor.detach(), lead) for tensor in arguments[:2])
    bias = None if arguments.bias is None else four_axes(arguments.bias.detach(), lead)
    structures, tables = _parts(arguments)
    found = []
    for b in range(len(query)):
        own = [Dense(_of(table, b)) for table in tables]
        mask = Combined((*structures, *own)) if structures or own else None
        biased = None if bias is None else _of(bias, b)
        causes = AttentionInputs(query[b], key[b], arguments.scale, mask, biased)
        found.append((causes, _first_seen(own)))
    return found


def _parts(arguments: Arguments) -> tuple[list[Mask], list[Tensor]]:
    """The parts of the mask that are the same for every sequence, and tables of the others.

    Tables are (B or 1, H or 1, N or 1, M); padding, which is the same for every query, has N = 1.
    """
    mask, shape = arguments.mask, arguments.shape
    parts = mask.parts if type(mask) is Combined else () if mask is None else (mask,)
    kinds = [(part, _is_structure(part, shape)) for part in parts]
    structures = [part for part, is_structure in kinds if is_structure]
    tables = [
        part.crop(shape, slice(0, 1) if type(part) is Padding else ALL)
        for part, is_structure in kinds
        if not is_structure
    ]
    return structures, [four_axes(table, shape[:-2]) for table in tables]


def _is_structure(part: Mask, shape: Shape) -> bool:
    """Whether it is the same for every sequence and head, and no table of N × M entries.

    The axes of what it allows of one pair tell.
    """
    return type(part) is KeyRanges or (
        part.device is None and part.crop(shape, slice(0, 1), slice(0, 1)).ndim == 2
    )


def _first_seen(tables: list[Dense]) -> int:
    """The first key that is no padding: one that the tables do not hide from every query."""
    seen = [table.table.any(dim=(0, 1)) for table in tables]
    return int(torch.stack(seen).all(dim=0).int().argmax()) if seen else 0


def _of(table: Tensor, sequence: int) -> Tensor:
    return table[sequence if len(table) > 1 else 0]
