"""The k largest weights of each row of a map, and their keys, gathered block by block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import HIDDEN
from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block


class Top(NamedTuple):
    """The largest weights of each row, descending, and their keys, (H, N, k) each.

    Where a row sees fewer than k keys, the rest is 0 with key −1.
    """

    weights: Tensor
    keys: Tensor


class TopKeys(Statistic):
    """The k largest weights of each row with their keys; of equal ones the lower key is first."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.top: Top | None = None

    def update(self, block: Block) -> None:
        """Write the block's rows."""
        H, N, _ = block.shape
        if self.top is None:
            values = block.weights.new_full((H, N, self.k), torch.nan)
            self.top = Top(values, values.new_full(values.shape, -1, dtype=torch.long))
        k = min(self.k, len(block.keys))
        scores, keys = largest(block.scores, k)
        weights, hidden = block.weights.gather(-1, keys), scores <= HIDDEN / 2
        found = Top(
            weights.masked_fill(hidden, 0.0), (keys + block.keys.start).masked_fill(hidden, -1)
        )
        for values, new, nothing in zip(self.top, found, (0.0, -1), strict=True):
            here = values[block.heads, block.rows]
            here[..., :k], here[..., k:] = new, nothing
        if block.empty is not None:
            self.top.weights[block.heads, block.rows].masked_fill_(
                block.empty[..., None], torch.nan
            )

    def merge(self, other: TopKeys) -> None:
        """Rows that only the other has seen are its own."""
        if self.top is None:
            self.top = other.top
        elif other.top is not None:
            missing = self.top.weights.isnan()
            self.top = Top(
                torch.where(missing, other.top.weights, self.top.weights),
                torch.where(missing, other.top.keys, self.top.keys),
            )

    def result(self) -> Top:
        """Weights and keys, (H, N, k)."""
        return self.seen(self.top)


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, descending, and where they are; of equal ones the first.

    torch.topk takes any of several equal ones, in any order. So it is asked for one more than k:
    only where that one equals the k-th may it have left out an earlier one. Hidden scores are in
    any order.
    """
    more, where = scores.topk(min(k + 1, scores.shape[-1]), dim=-1)
    values, places = more[..., :k], where[..., :k]
    equal = (more[..., 1:] == more[..., :-1]) & (more[..., 1:] > HIDDEN / 2)
    if not bool(equal.any()):
        return values, places
    places, order = places.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    places = places.gather(-1, order)
    if 0 < k < scores.shape[-1]:
        unsure = equal[..., -1]
        places[unsure] = _first_of_the_last(scores[unsure], values[unsure], places[unsure])
    return values, places


def _first_of_the_last(scores: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """`places` (rows, k), where those that equal the k-th are the first such keys of the row."""
    k, last = values.shape[-1], values[:, -1:]
    keys = torch.arange(scores.shape[-1], device=scores.device)
    first = keys.where(scores == last, len(keys)).topk(k, dim=-1, largest=False).values
    larger = values > last
    rank = torch.arange(k, device=scores.device) - larger.sum(dim=-1, keepdim=True)
    return places.where(larger, first.gather(-1, rank.clamp(min=0)))
