"""Groups of a call's sequences that share mask and padding, so that one check compares them."""

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
    """Indices of sequences with the same real tokens, and their attention inputs, joined.

    The inputs have the heads of all sequences, one sequence after another.
    """

    sequences: list[int]
    inputs: AttentionInputs
    tokens: RealTokens


def groups_of(inputs: Iterable[AttentionInputs], tokens: Sequence[RealTokens]) -> Iterator[Group]:
    """Yield groups of sequences with the same real tokens, with a limited number of scores.

    Without groups, each of thousands of windows or table rows would take a millisecond.
    """
    open_groups: dict[int, tuple[list[int], list[AttentionInputs]]] = {}
    for sequence, (of_sequence, real) in enumerate(zip(inputs, tokens, strict=True)):
        numbers, several = open_groups.setdefault(id(real), ([], []))
        numbers.append(sequence)
        several.append(of_sequence)
        most = 1 if _has_heads(real.mask) else ENTRIES // max(1, math.prod(of_sequence.shape))
        if len(numbers) >= most:
            del open_groups[id(real)]
            yield Group(numbers, _joined(several), real)
    for numbers, several in open_groups.values():
        yield Group(numbers, _joined(several), tokens[numbers[0]])


def tables_of(mask: Mask) -> list[Tensor]:
    """Return the tensors of a mask of `ops.masks`."""
    if isinstance(mask, Combined):
        return [table for part in mask.parts for table in tables_of(part)]
    return [value for value in vars(mask).values() if isinstance(value, Tensor)]


def _has_heads(mask: Mask | None) -> bool:
    """Return whether the mask differs from head to head."""
    tables = [] if mask is None else tables_of(mask)
    return any(table.ndim > 2 and table.shape[-3] > 1 for table in tables)


def _joined(several: list[AttentionInputs]) -> AttentionInputs:
    """Join sequences with the same mask into one with the heads of all."""
    first = several[0]
    if len(several) == 1:
        return first
    H = len(first.query)
    biases = [x.bias.expand(H, *x.bias.shape[-2:]) for x in several if x.bias is not None]
    all_sinks = [x.sinks for x in several if x.sinks is not None]
    query, key = torch.cat([x.query for x in several]), torch.cat([x.key for x in several])
    bias, sinks = (torch.cat(tables) if tables else None for tables in (biases, all_sinks))
    return first._replace(query=query, key=key, bias=bias, sinks=sinks)
