"""Groups of sequences (texts × parts) of a call that have the same mask and padding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import ENTRIES, AttentionInputs
from heedful.ops.masks import Combined, Mask
from heedful.recording.unpadded import RealTokens


class Group(NamedTuple):
    """Sequences of a call with the same `RealTokens`, which are checked together.

    sequences: their indices. inputs: their attention inputs, joined along the axis of heads: the
    heads of the first sequence, then those of the second, and so on. tokens: their real tokens.
    """

    sequences: list[int]
    inputs: AttentionInputs
    tokens: RealTokens


def groups_of(inputs: Iterable[AttentionInputs], tokens: Sequence[RealTokens]) -> Iterator[Group]:
    """Yield groups of sequences with the same real tokens; several only up to `ENTRIES` scores.

    A check takes about a millisecond, and a call may have thousands of sequences (such as windows).
    """
    open_groups: dict[int, tuple[list[int], list[AttentionInputs]]] = {}
    for index, (sequence, real) in enumerate(zip(inputs, tokens, strict=True)):
        indices, sequences = open_groups.setdefault(id(real), ([], []))
        indices.append(index)
        sequences.append(sequence)
        size = 1 if _has_heads(real.mask) else ENTRIES // max(1, math.prod(sequence.shape))
        if len(indices) >= size:
            del open_groups[id(real)]
            yield Group(indices, _join(sequences), real)
    for indices, sequences in open_groups.values():
        yield Group(indices, _join(sequences), tokens[indices[0]])


def tables_of(mask: Mask) -> list[Tensor]:
    """Return the tensors that a mask of `ops.masks` contains."""
    if isinstance(mask, Combined):
        return [table for part in mask.parts for table in tables_of(part)]
    return [value for value in vars(mask).values() if isinstance(value, Tensor)]


def _has_heads(mask: Mask | None) -> bool:
    """Return whether the mask differs from head to head."""
    tables = [] if mask is None else tables_of(mask)
    return any(table.ndim > 2 and table.shape[-3] > 1 for table in tables)


def _join(sequences: list[AttentionInputs]) -> AttentionInputs:
    """Join sequences with the same mask along the axis of heads."""
    first = sequences[0]
    if len(sequences) == 1:
        return first
    H = len(first.query)
    biases = [x.bias.expand(H, *x.bias.shape[-2:]) for x in sequences if x.bias is not None]
    all_sinks = [x.sinks for x in sequences if x.sinks is not None]
    query, key = torch.cat([x.query for x in sequences]), torch.cat([x.key for x in sequences])
    bias, sinks = (torch.cat(tables) if tables else None for tables in (biases, all_sinks))
    return first._replace(query=query, key=key, bias=bias, sinks=sinks)
