"""How much of each row goes to which segment of the keys, as a mean over segments of the queries.

A segment is any set of places: a run of them, such as a document in a prompt, or some here and
there. Of a segment A of queries and a segment B of keys:

- the **share** is the mean, over the queries of A that may see anything, of Σ W[n, m] over m in B;
- **chance** is the same of rows that spread what they have evenly over the keys that the mask
  allows: the mean of (1 − what a learned sink takes) · (allowed keys in B) / (allowed keys). It is
  what the same rows give with their keys shuffled, as for the kinds of heads.

Where no key is in two segments, and each is in one, the shares of A sum to 1 less what a learned
sink takes. Segments may overlap: each share is a number of its own.

>>> from heedful.ops.inputs import AttentionInputs
>>> from heedful.ops.masks import Causal
>>> from heedful.ops.statistics import gather
>>> words = torch.eye(4).unsqueeze(0)
>>> halves = torch.tensor([[True, True, False, False], [False, False, True, True]])
>>> [found] = gather(AttentionInputs(words, words, 1.0, Causal()), SegmentShares(halves, halves))
>>> found.share[0], found.chance[0]
(tensor([[1.0000, 0.0000],
        [0.3868, 0.6132]], dtype=torch.float64), tensor([[1.0000, 0.0000],
        [0.5833, 0.4167]], dtype=torch.float64))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import Index
from heedful.ops.score_blocks import Allowed
from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block


class Shares(NamedTuple):
    """What segments of queries give to segments of keys, A and B of them; NaN where `queries` is 0.

    share, chance: (H, A, B).
    learned: (H, A), the mean of what a learned sink takes; exactly 0 where there is none.
    queries: (H, A), how many queries of the segment may see anything.
    """

    share: Tensor
    chance: Tensor
    learned: Tensor
    queries: Tensor


class SegmentShares(Statistic):
    """Mean shares between segments, in one pass; sums are kept in float64.

    Args:
        queries: boolean (A, N), the queries of each segment.
        keys: boolean (B, M), the keys of each segment.
    """

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.members, self.keys = queries.double(), keys
        self.places = [one.nonzero()[:, 0] for one in keys]
        self.sums: Tensor | None = None  # (H, A, 2 B + 2): of each number of `_rows`
        self._even: tuple[Block, Tensor] | None = None  # the last rows' chance, for the next heads

    def update(self, block: Block) -> None:
        """Add the block's rows to the sums of their segments."""
        if self.sums is None:
            numbers = 2 * len(self.places) + 2
            self.sums = block.weights.new_zeros(
                block.shape[0], len(self.members), numbers, dtype=torch.float64
            )
            self.members = self.members.to(self.sums.device)
            self.keys = self.keys.to(self.sums.device)
        self.sums[block.heads] += self.members[:, block.rows] @ self._rows(block)

    def merge(self, other: SegmentShares) -> None:
        """Add up."""
        if self.sums is None:
            self.sums, self.members = other.sums, other.members
        elif other.sums is not None:
            self.sums = self.sums + other.sums

    def result(self) -> Shares:
        """The means."""
        B, sums = len(self.places), self.seen(self.sums)
        queries = sums[..., -1:]
        share, chance, kept, _ = (sums / queries).split([B, B, 1, 1], dim=-1)
        return Shares(share, chance, 1 - kept[..., 0], queries[..., 0].long())

    def _rows(self, block: Block) -> Tensor:
        """Of each row its shares, its chance, what a learned sink leaves, and 1; (h, n, 2 B + 2).

        All are 0 of a row that may see nothing.
        """
        weights, B = block.weights, len(self.places)
        found = weights.new_ones(*weights.shape[:2], 2 * B + 2, dtype=torch.float64)
        for i, places in enumerate(self.places):
            where = _index(_inside(places, block.keys))
            if isinstance(where, slice):
                found[..., i] = weights[:, :, where].sum(dim=-1)
            else:  # a product reads the weights where they are, and copies none
                among = self.keys[i, block.columns].to(weights)
                found[..., i] = (weights.flatten(0, 1) @ among).view(weights.shape[:2])
        if block.has_sink:
            found[..., -2] = weights.sum(dim=-1)
        torch.mul(self._chance(block), found[..., -2:-1], out=found[..., B:-2])
        return found if block.empty is None else found.masked_fill_(block.empty[..., None], 0.0)

    def _chance(self, block: Block) -> Tensor:
        """The part of what each query may see that is in each segment, (h or 1, n, B)."""
        if self._even is not None and _sees_the_same(block, self._even[0]):
            return self._even[1]
        n, everything = len(block.queries), torch.arange(len(block.keys), device="cpu")
        inside = [_inside(places, block.keys) for places in self.places]
        counts = [_seen(block.allowed, n, places) for places in (*inside, everything)]
        *parts, whole = (one.to(block.weights.device, torch.float64) for one in counts)
        found = torch.stack(parts, dim=-1) / whole.clamp(min=1)[..., None]
        self._even = block, found
        return found


def _sees_the_same(block: Block, other: Block) -> bool:
    """Whether two blocks have the same rows, of heads that share their tables of the mask."""
    tables, others = ([table for _, table in one.allowed.parts] for one in (block, other))
    if block.queries != other.queries or len(tables) != len(others):
        return False
    return all(one is another for one, another in zip(tables, others, strict=True))


def _inside(places: Tensor, keys: range) -> Tensor:
    """The sorted places that are among neighbouring keys, counted from the first of these."""
    ends = torch.tensor([keys.start, keys.stop], device="cpu")
    first, end = torch.searchsorted(places, ends).tolist()
    return places[first:end] - keys.start


def _index(places: Tensor) -> Index:
    """Sorted places as a slice where they follow one another: then nothing is copied."""
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first < len(places) else places


def _seen(allowed: Allowed, queries: int, places: Tensor) -> Tensor:
    """How many of some keys each of the queries may see, (h or 1, n)."""
    counts = torch.full((1, queries), len(places), device="cpu")
    for where, table in allowed.parts:
        own = _inside(places, range(where.start, where.stop))
        counts = counts - len(own) + table[..., _index(own)].sum(dim=-1).cpu()
    return counts
