"""The k largest weights of each row of a map, and their keys, computed block by block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import MASKED_SCORE
from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block


class Top(NamedTuple):
    """The k largest weights of each row in descending order, and their keys, (H, N, k) each.

    With fewer than k allowed keys, other weights are 0 and keys −1; with none, all weights are NaN.
    """

    weights: Tensor
    keys: Tensor


class TopKeys(Statistic):
    """Statistic that computes `Top`; among equal weights, lower keys come first."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.top: Top | None = None

    def update(self, block: Block) -> None:
        """Store the rows of the block."""
        H, N, _ = block.shape
        if self.top is None:
            values = block.weights.new_full((H, N, self.k), torch.nan)
            self.top = Top(values, values.new_full(values.shape, -1, dtype=torch.long))
        k = min(self.k, len(block.keys))
        scores, keys = largest(block.scores, k)
        weights, masked = block.weights.gather(-1, keys), scores <= MASKED_SCORE / 2
        keys = (keys + block.keys.start).masked_fill(masked, -1)
        top = Top(weights.masked_fill(masked, 0.0), keys)
        for values, new, filler in zip(self.top, top, (0.0, -1), strict=True):
            rows = values[block.heads, block.rows]
            rows[..., :k], rows[..., k:] = new, filler
        if block.empty is not None:
            rows = self.top.weights[block.heads, block.rows]
            rows.masked_fill_(block.empty[..., None], torch.nan)

    def result(self) -> Top:
        """Return weights and keys, (H, N, k) each."""
        return self.required(self.top)


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each row in descending order, and their indices.

    Among equal scores, lower indices come first; masked scores are in any order. torch.topk returns
    any of several equal scores. So rows with equal scores among the k + 1 largest are sorted in
    full, by a stable sort.
    """
    more, indices = scores.topk(min(k + 1, scores.shape[-1]), dim=-1)
    values, indices = more[..., :k], indices[..., :k]
    equal = (more[..., 1:] == more[..., :-1]) & (more[..., 1:] > MASKED_SCORE / 2)
    tied = equal.any(dim=-1)
    if bool(tied.any()):
        order = scores[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], indices[tied] = order.values[:, :k], order.indices[:, :k]
    return values, indices
