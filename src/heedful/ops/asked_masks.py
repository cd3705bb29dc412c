"""Masks of somebody's own are asked what they allow by a call of attention, and by nobody else.

What `allowed` of such a mask does is not known: it may draw random numbers, or count how often it
is asked. So who listens to a call is given what the mask said to that call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.ops.masks import Combined, Mask
from heedful.ops.score_tables import ALL, Index, Shape


def is_of_ours(mask: Mask) -> bool:
    """Whether a mask is of this package, with all its parts, and so the same whenever it is asked.

    >>> from heedful.ops.masks import Causal, Window
    >>> is_of_ours(Causal() & Window(2))
    True
    >>> class Ahead(Causal):
    ...     def allowed(self, query, key, shape):
    ...         return key <= query + 1
    >>> is_of_ours(Ahead()), is_of_ours(Causal() & Ahead())
    (False, False)
    """
    if type(mask) is Combined:
        return all(map(is_of_ours, mask.parts))
    return type(mask).__module__ == Mask.__module__


class Asked(Mask):
    """Stands for a mask of somebody's own in one call of attention, and remembers what it said."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask
        self._said: list[tuple[Index, Index, Tensor]] = []

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """Where the mask is."""
        return self.mask.device

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """What the mask allows."""
        return self.mask.allowed(query, key, shape)

    def span(self, queries: range, shape: Shape) -> range:
        """The mask's own."""
        return self.mask.span(queries, shape)

    def leaves_every_row(self, shape: Shape) -> bool:
        """Whether the mask knows that it does."""
        return self.mask.leaves_every_row(shape)

    def crop(
        self, shape: Shape, queries: Index = ALL, keys: Index = ALL, device: Any = None
    ) -> Tensor:
        """The mask's own crop, which is remembered."""
        said = self.mask.crop(shape, queries, keys, device)
        is_whole = said.shape[-2:] == tuple(shape[-2:])
        # parts are copied, as a mask may write all its answers into one place
        self._said.append((queries, keys, said if is_whole else said.clone()))
        return said

    def table(self, shape: Shape) -> Tensor:
        """All that it said last, (..., N, M); outside its spans no query sees a key."""
        last = self._said[-1][2]
        if last.shape[-2:] == tuple(shape[-2:]):
            return last
        lead = torch.broadcast_shapes(*(said.shape[:-2] for _, _, said in self._said))
        whole = last.new_zeros(*lead, *shape[-2:])
        for queries, keys, said in self._said:
            whole[..., queries, keys] = said
        return whole
