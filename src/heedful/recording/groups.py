"""Sequences of a call that share a layout, which its certificate compares at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.ops.causes import ENTRIES, Causes
from heedful.recorder.owners.mask_structure import tables_of
from heedful.recorder.owners.padding import Layout, take


@dataclass
class Group:
    """Sequences of one layout, which are compared at once.

    sequences, several: their numbers, and what is kept of each.
    """

    sequences: list[int]
    several: list[Causes]
    layout: Layout

    @functools.cached_property
    def causes(self) -> Causes:
        """What is kept of all, as one sequence with the heads of all."""
        return _together(self.several)

    def of(self, chosen: list[int]) -> Group:
        """Some of its sequences, by their places in it."""
        sequences = [self.sequences[i] for i in chosen]
        return Group(sequences, [self.several[i] for i in chosen], self.layout)

    def of_all(self, tables: Sequence[Tensor] | Tensor) -> Tensor:
        """The tables of its sequences, (H, …) each, as one."""
        several = [tables[sequence] for sequence in self.sequences]
        return several[0] if len(several) == 1 else torch.cat(several)

    def of_heads(self, tables: Sequence[Tensor]) -> Tensor:
        """The same of tables (H or 1, …), with rows for all heads of several sequences."""
        if len(self.sequences) == 1:
            return self.of_all(tables)
        H = len(self.causes.query) // len(self.sequences)
        return self.of_all([table.expand(H, *table.shape[1:]) for table in tables])


def groups_of(causes: Iterable[Causes], layouts: Sequence[Layout]) -> Iterator[Group]:
    """Sequences with one layout together, as many as have few scores.

    Thousands of windows or of rows of a table would else take a millisecond each.
    """
    groups: dict[int, Group] = {}
    for sequence, (of, layout) in enumerate(zip(causes, layouts, strict=True)):
        group = groups.setdefault(id(layout), Group([], [], layout))
        group.sequences.append(sequence)
        group.several.append(of)
        most = 1 if _has_heads(layout) else ENTRIES // max(1, math.prod(of.shape))
        if len(group.sequences) >= most:
            yield groups.pop(id(layout))
    yield from groups.values()


def _has_heads(layout: Layout) -> bool:
    """Whether heads have masks of their own."""
    tables = [] if layout.mask is None else tables_of(layout.mask)
    return any(table.ndim > 2 and table.shape[-3] > 1 for table in tables)


def _together(several: list[Causes]) -> Causes:
    """Sequences with one mask as one with the heads of all."""
    first = several[0]
    if len(several) == 1:
        return first
    H = len(first.query)
    biases = [of.bias.expand(H, *of.bias.shape[-2:]) for of in several if of.bias is not None]
    sinks = [of.sinks for of in several if of.sinks is not None]
    return first._replace(
        query=torch.cat([of.query for of in several]),
        key=torch.cat([of.key for of in several]),
        bias=torch.cat(biases) if biases else None,
        sinks=torch.cat(sinks) if sinks else None,
    )


def values_of(group: Group, values: Tensor) -> Tensor:
    """The values of the keys of its sequences, (G, M, r), of those of all."""
    return take(group.of_all(values), group.layout.keys)
