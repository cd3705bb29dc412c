"""Sequences of a call that share mask and padding, which its certificate compares at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import ENTRIES, AttentionInputs
from heedful.ops.masks import Combined, Mask
from heedful.recording.real_tokens import RealTokens


class Group(NamedTuple):
    """Sequences, by their numbers, with the same real tokens, and the causes of all as of one.

    The causes have the heads of all.
    """

    sequences: list[int]
    causes: AttentionInputs
    tokens: RealTokens


def groups_of(causes: Iterable[AttentionInputs], tokens: Sequence[RealTokens]) -> Iterator[Group]:
    """Sequences with the same real tokens together, as many as have few scores.

    Thousands of windows or of rows of a table would else take a millisecond each.
    """
    open_groups: dict[int, tuple[list[int], list[AttentionInputs]]] = {}
    for sequence, (of, real) in enumerate(zip(causes, tokens, strict=True)):
        numbers, several = open_groups.setdefault(id(real), ([], []))
        numbers.append(sequence)
        several.append(of)
        most = 1 if _has_heads(real.mask) else ENTRIES // max(1, math.prod(of.shape))
        if len(numbers) >= most:
            del open_groups[id(real)]
            yield Group(numbers, _joined(several), real)
    for numbers, several in open_groups.values():
        yield Group(numbers, _joined(several), tokens[numbers[0]])


def tables_of(mask: Mask) -> list[Tensor]:
    """The tensors that a mask of `ops.masks` consists of."""
    if isinstance(mask, Combined):
        return [table for part in mask.parts for table in tables_of(part)]
    return [value for value in vars(mask).values() if isinstance(value, Tensor)]


def _has_heads(mask: Mask | None) -> bool:
    """Whether heads have masks of their own."""
    tables = [] if mask is None else tables_of(mask)
    return any(table.ndim > 2 and table.shape[-3] > 1 for table in tables)


def _joined(several: list[AttentionInputs]) -> AttentionInputs:
    """Sequences with one mask as one with the heads of all."""
    first = several[0]
    if len(several) == 1:
        return first
    H = len(first.query)
    biases = [of.bias.expand(H, *of.bias.shape[-2:]) for of in several if of.bias is not None]
    all_sinks = [of.sinks for of in several if of.sinks is not None]
    query, key = torch.cat([of.query for of in several]), torch.cat([of.key for of in several])
    bias, sinks = (torch.cat(tables) if tables else None for tables in (biases, all_sinks))
    return first._replace(query=query, key=key, bias=bias, sinks=sinks)
