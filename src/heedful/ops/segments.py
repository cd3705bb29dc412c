"""Attention between segments: the mean weight from a segment of queries to a segment of keys.

A segment is any set of positions, such as a document in a prompt. For a segment A of queries and a
segment B of keys:

- the **share** is the mean, over the queries n in A that may attend to a key, of Σ W[n, m] over the
  keys m in B;
- the **chance** is the share of uniform attention over the allowed keys: the mean, over the same
  queries, of (1 − weight of the learned sink) · (number of allowed keys in B) / (number of allowed
  keys). It is the expected share after the weights of each row are shuffled among its allowed keys.

If every key is in exactly one segment, the shares of A sum to 1 minus the weight of the learned
sink. Segments may overlap.

>>> from heedful.ops.inputs import AttentionInputs
>>> from heedful.ops.masks import Causal
>>> from heedful.ops.statistics import gather
>>> words = torch.eye(4).unsqueeze(0)
>>> halves = torch.tensor([[True, True, False, False], [False, False, True, True]])
>>> [result] = gather(AttentionInputs(words, words, 1.0, Causal()), SegmentShares(halves, halves))
>>> result.share[0], result.chance[0]
(tensor([[1.0000, 0.0000],
        [0.3868, 0.6132]], dtype=torch.float64), tensor([[1.0000, 0.0000],
        [0.5833, 0.4167]], dtype=torch.float64))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import as_slice_if_consecutive
from heedful.ops.score_blocks import Allowed
from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block


class Shares(NamedTuple):
    """Shares between A segments of queries and B segments of keys; NaN where `queries` is 0.

    share, chance: (H, A, B).
    learned: (H, A), the mean weight of the learned sink; exactly 0 without a sink.
    queries: (H, A), the number of queries of the segment that may attend to a key.
    """

    share: Tensor
    chance: Tensor
    learned: Tensor
    queries: Tensor


class SegmentShares(Statistic):
    """Statistic that computes `Shares` in one pass over the map, with sums in float64.

    Args:
        queries: boolean (A, N), the queries of each segment.
        keys: boolean (B, M), the keys of each segment.
    """

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.members, self.keys = queries.double(), keys
        self.positions = [segment.nonzero()[:, 0] for segment in keys]
        self.sums: Tensor | None = None  # (H, A, 2 B + 2): sums of the columns of `_rows`
        self._last: tuple[Block, Tensor] | None = None  # fractions, reused for other heads

    def update(self, block: Block) -> None:
        """Add the rows of the block to the sums of their segments."""
        if self.sums is None:
            columns = 2 * len(self.positions) + 2
            self.sums = block.weights.new_zeros(
                block.shape[0], len(self.members), columns, dtype=torch.float64
            )
            self.members = self.members.to(self.sums.device)
            self.keys = self.keys.to(self.sums.device)
        self.sums[block.heads] += self.members[:, block.rows] @ self._rows(block)

    def result(self) -> Shares:
        """Return the means."""
        B, sums = len(self.positions), self.required(self.sums)
        queries = sums[..., -1:]
        share, chance, total, _ = (sums / queries).split([B, B, 1, 1], dim=-1)
        return Shares(share, chance, 1 - total[..., 0], queries[..., 0].long())

    def _rows(self, block: Block) -> Tensor:
        """Return columns (h, n, 2 B + 2): shares (B), chances (B), sum of the weights, and 1.

        In a fully masked row, all columns are 0.
        """
        weights, B = block.weights, len(self.positions)
        rows = weights.new_ones(*weights.shape[:2], 2 * B + 2, dtype=torch.float64)
        for i, positions in enumerate(self.positions):
            index = as_slice_if_consecutive(_inside(positions, block.keys))
            if isinstance(index, slice):
                rows[..., i] = weights[:, :, index].sum(dim=-1)
            else:  # a product copies no weights, unlike indexing
                is_member = self.keys[i, block.columns].to(weights)
                rows[..., i] = (weights.flatten(0, 1) @ is_member).view(weights.shape[:2])
        if block.has_sink:
            rows[..., -2] = weights.sum(dim=-1)
        torch.mul(self._chance(block), rows[..., -2:-1], out=rows[..., B:-2])
        return rows if block.empty is None else rows.masked_fill_(block.empty[..., None], 0.0)

    def _chance(self, block: Block) -> Tensor:
        """Return the fraction of a query's allowed keys that is in each segment, (h or 1, n, B)."""
        if self._last is not None and _has_same_mask(block, self._last[0]):
            return self._last[1]
        n, everything = len(block.queries), torch.arange(len(block.keys), device="cpu")
        inside = [_inside(positions, block.keys) for positions in self.positions]
        counts = [_count_allowed(block.allowed, n, keys) for keys in (*inside, everything)]
        *parts, total = (count.to(block.weights.device, torch.float64) for count in counts)
        fractions = torch.stack(parts, dim=-1) / total.clamp(min=1)[..., None]
        self._last = block, fractions
        return fractions


def _has_same_mask(block: Block, other: Block) -> bool:
    """Return whether two blocks have the same rows and the same mask tables."""
    tables, others = ([table for _, table in b.allowed.parts] for b in (block, other))
    if block.queries != other.queries or len(tables) != len(others):
        return False
    return all(a is b for a, b in zip(tables, others, strict=True))


def _inside(positions: Tensor, keys: range) -> Tensor:
    """Return the positions (sorted) in a range of keys, relative to the start of the range."""
    ends = torch.tensor([keys.start, keys.stop], device="cpu")
    first, end = torch.searchsorted(positions, ends).tolist()
    return positions[first:end] - keys.start


def _count_allowed(allowed: Allowed, queries: int, positions: Tensor) -> Tensor:
    """Count how many keys at these positions each query may attend to, (h or 1, n)."""
    counts = torch.full((1, queries), len(positions), device="cpu")
    for key_slice, table in allowed.parts:
        inside = _inside(positions, range(key_slice.start, key_slice.stop))
        counts = counts - len(inside) + table[..., as_slice_if_consecutive(inside)].sum(-1).cpu()
    return counts
