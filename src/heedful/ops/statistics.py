"""What one asks of a map, gathered block by block: its definitions, once.

W is the map of one head; rows are queries n (N of them), columns keys m (M). Query n stands at
position p(n) = n + M − N. A query that may attend to nothing has NaN in every statistic of a row,
and is left out of means.

Each statistic is updated with the blocks of a map, in any order, and can be merged with one that
saw other blocks of the same map; what it found is in `result()`.

>>> from heedful.ops.causes import Causes
>>> from heedful.ops.masks import Causal
>>> words = torch.eye(3).unsqueeze(0)
>>> entropy, received = gather(Causes(words, words, 1.0, Causal()), Entropy(), Received())
>>> entropy
tensor([[0.0000, 0.5822, 0.9753]])
>>> received
tensor([[1.4809, 0.9430, 0.5761]])
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import ArgumentError, HeedfulError
from heedful.ops.blocks import Block, blocks
from heedful.ops.causes import HIDDEN, Causes
from heedful.ops.masks import ALL

T = TypeVar("T")


def gather(causes: Causes, *statistics: Statistic, **sizes: int) -> list[Any]:
    """The results of all statistics, in one pass over every row of a map.

    Args:
        causes: what the map is a function of.
        statistics: fresh ones.
        sizes: `entries` and `queries` of a block, see `blocks`.
    """
    for block in blocks(causes, **sizes):
        for statistic in statistics:
            statistic.update(block)
    return [statistic.result() for statistic in statistics]


class Statistic:
    """Something that is gathered over the blocks of a map."""

    def update(self, block: Block) -> None:
        """Take a block in."""
        raise NotImplementedError

    def merge(self, other: Any) -> None:
        """Take in what another one of the same kind has seen of the same map."""
        raise NotImplementedError

    def result(self) -> Any:
        """What was found."""
        raise NotImplementedError


class RowStatistic(Statistic):
    """A number for each query, (H, N), NaN where it sees nothing; defines `of`."""

    values: Tensor | None = None

    def of(self, block: Block) -> Tensor:
        """(h, n) of a block."""
        raise NotImplementedError

    def update(self, block: Block) -> None:
        """Write the block's rows."""
        if self.values is None:
            self.values = block.weights.new_full(block.shape[:2], torch.nan)
        found = self.of(block) if len(block.keys) else torch.nan
        self.values[block.heads, block.rows] = found
        if block.empty is not None:
            self.values[block.heads, block.rows].masked_fill_(block.empty, torch.nan)

    def merge(self, other: RowStatistic) -> None:
        """Rows that only the other has seen are its own."""
        if self.values is None:
            self.values = other.values
        elif other.values is not None:
            self.values = torch.where(self.values.isnan(), other.values, self.values)

    def result(self) -> Tensor:
        """(H, N)."""
        return _given(self.values)


class Entropy(RowStatistic):
    """−Σₘ W log W, in nats: 0 where one key has all, log(n) where n keys have the same."""

    def of(self, block: Block) -> Tensor:
        """From log W = (score − highest) − excess: no logarithm of each weight is needed.

        Both parts are small, however large the scores, and so are their rounding errors.
        """
        below = _products(block.weights, block.scores, block.highest)
        return (_of_sums(block, block.excess) - below).clamp(min=0)


class LargestWeight(RowStatistic):
    """The largest weight of each row."""

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        return block.largest


class Distance(RowStatistic):
    """Σₘ W · |p(n) − m|: how far a query looks, in tokens.

    Σ W · (p(n) − m) needs one sum for each row; keys after the query, where there are any, are
    counted twice the other way.
    """

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        weights, first = block.weights, block.position
        n, m = weights.shape[1:]
        # counted from the block's own positions: small numbers have small rounding errors
        keys = torch.arange(-first, m - first, dtype=weights.dtype, device=weights.device)
        own = torch.arange(n, dtype=weights.dtype, device=weights.device)
        moment = (weights.flatten(0, 1) @ keys[:, None]).view(weights.shape[:2])
        found = _of_sums(block, own) - moment
        start = min(max(first, 0), m)
        if block.allowed.ahead:
            later = (keys[start:] - own[:, None]).clamp(min=0)
            found += 2 * torch.linalg.vecdot(weights[:, :, start:], later)
        return found


class Diagonal(RowStatistic):
    """W[n, p(n) − offset]: 0 is the token itself, 1 the one before it.

    NaN for a query that has no such key, as the first one has no key before it.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        n, m = block.weights.shape[1:]
        shift = block.position - self.offset
        if 0 <= shift <= m - n:  # as most are: every row has its key here
            return block.weights.diagonal(shift, dim1=1, dim2=2)
        found = block.weights.new_zeros(len(block.weights), n)
        first = max(0, -shift)
        line = block.weights.diagonal(shift, dim1=1, dim2=2) if -n < shift < m else found[:, :0]
        found[:, first : first + line.shape[-1]] = line
        # outside the map, and not only hidden, there is no such key
        found[:, : max(0, -shift - block.keys.start)] = torch.nan
        found[:, max(0, block.shape[-1] - block.keys.start - shift) :] = torch.nan
        return found


class Sink(RowStatistic):
    """W[n, first]: the weight on the first key that is no padding, by default key 0."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        if self.first not in block.keys:
            return torch.zeros_like(block.highest)
        return block.weights[:, :, self.first - block.keys.start]


class Nearby(RowStatistic):
    """Σ W[n, m] over keys at most `reach` tokens away, the token itself included."""

    def __init__(self, reach: int) -> None:
        self.reach = reach

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        keys = torch.arange(-block.position, len(block.keys) - block.position)
        own = torch.arange(len(block.queries))
        near = (keys - own[:, None]).abs() <= self.reach
        return (block.weights * near.to(block.weights)).sum(dim=-1)


class Evenness(RowStatistic):
    """Entropy divided by log(keys that the query may see): 1 where all get the same.

    NaN for a query that may see one key only, which has no choice.
    """

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        choices = block.allowed.choices(len(block.queries)).to(block.weights)
        entropy = Entropy().of(block)
        return torch.where(choices > 1, entropy / choices.log(), torch.nan)


class Matching(RowStatistic):
    """Σ W[n, m] over earlier keys whose token, `shift` places before, is that of the query.

    With a shift of 0 these are earlier occurrences of the token itself; with 1 the tokens that
    came after them. NaN for a query that has no such key.

    Args:
        ids: (M,), the token of each key; queries are the last N of them.
        shift: 0 or more.
    """

    def __init__(self, ids: Tensor, shift: int) -> None:
        self.ids, self.shift = ids, shift
        places = torch.arange(len(ids), device=ids.device)
        tokens, which = ids.unique(return_inverse=True)
        self.first = places.new_empty(len(tokens)).scatter_reduce(
            0, which, places, "amin", include_self=False
        )[which]  # of each token: whether there is a key to find is not for a block to say

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        _, N, M = block.shape
        ids = self.ids.to(block.weights.device)
        places = torch.arange(M, device=ids.device)
        own = places[block.rows] + M - N if M >= N else places[block.rows]
        keys = places[block.columns]
        tokens = ids[(keys - self.shift).clamp(min=0)]
        matches = (tokens == ids[own][:, None]) & (keys >= self.shift) & (keys < own[:, None])
        found = (block.weights * matches.to(block.weights)).sum(dim=-1)
        has_one = self.first.to(own.device)[own] + self.shift < own
        return torch.where(has_one, found, torch.nan)


class Dropped(RowStatistic):
    """1 − Σₘ W: what a learned sink takes."""

    def of(self, block: Block) -> Tensor:
        """(h, n); nothing but for a sink, whatever rounding leaves of a row."""
        return 1 - block.weights.sum(dim=-1) if block.has_sink else torch.zeros_like(block.highest)


class Received(Statistic):
    """Σₙ W[n, m] of each key, (H, M); as a mean, divided by the queries that may see it."""

    def __init__(self, mean: bool = False) -> None:
        self.mean = mean
        self.sums: Tensor | None = None
        self.counts: Tensor | None = None

    def update(self, block: Block) -> None:
        """Add the columns of the block."""
        H, _, M = block.shape
        if self.sums is None or self.counts is None:
            # float64: a key may be seen by very many queries
            self.sums = block.weights.new_zeros(H, M, dtype=torch.float64)
            self.counts = torch.zeros(H, M)
        self.sums[block.heads, block.columns].add_(block.weights.sum(dim=1))
        if self.mean:
            self.counts[block.heads, block.columns] += block.allowed.seen_by(len(block.queries))

    def merge(self, other: Received) -> None:
        """Add up."""
        if self.sums is None or self.counts is None:
            self.sums, self.counts = other.sums, other.counts
        elif other.sums is not None and other.counts is not None:
            self.sums, self.counts = self.sums + other.sums, self.counts + other.counts

    def result(self) -> Tensor:
        """(H, M); as a mean, NaN for a key that no query may see."""
        sums = _given(self.sums)
        return (sums / _given(self.counts).to(sums) if self.mean else sums).float()


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
        return _given(self.top)


class Heatmap(Statistic):
    """A region of the map pooled to at most size × size cells, (H, rows, columns).

    A cell is the mean, or the largest, of the weights in it; hidden ones count as 0. All cells
    have the same size but the last ones, which may be smaller.

    Args:
        size: how many rows and columns of cells there may be.
        reduce: "mean" or "max".
        queries, keys: the region, slices without a step; default all.
    """

    def __init__(
        self,
        size: int = 256,
        reduce: str = "mean",
        queries: slice = ALL,
        keys: slice = ALL,
    ) -> None:
        if reduce not in ("mean", "max"):
            raise ArgumentError(f"reduce={reduce!r}", expected="'mean' or 'max'")
        if size < 1:
            raise ArgumentError(f"size={size}", expected="at least 1 cell")
        if {queries.step, keys.step} - {None, 1}:
            raise ArgumentError(
                "a heat map of every few rows or columns",
                expected="slices without a step",
                remedy="weights(queries=…, keys=…) takes any indices",
            )
        self.size, self.reduce = size, reduce
        self.queries, self.keys = queries, keys
        self.cells: Tensor | None = None

    def update(self, block: Block) -> None:
        """Pool the columns of the block, then add its rows to theirs."""
        H, N, M = block.shape
        rows, columns = range(N)[self.queries], range(M)[self.keys]
        if self.cells is None:
            self.heights, self.widths = (_cells(len(part), self.size) for part in (rows, columns))
            self.cells = block.weights.new_zeros(H, len(self.heights), len(self.widths))
        own, seen = _meeting(block.queries, rows), _meeting(block.keys, columns)
        if not len(own) or not len(seen):
            return
        part = block.weights[:, _from(own, block.queries), _from(seen, block.keys)]
        pooled = self._columns(part, _from(seen, columns))
        first = (seen.start - columns.start) // int(self.widths[0])
        here = self.cells[block.heads, :, first : first + pooled.shape[-1]]
        row = torch.arange(own.start - rows.start, own.stop - rows.start, device=part.device)
        row //= int(self.heights[0])
        if self.reduce == "mean":
            here.index_add_(1, row, pooled)
        else:
            here.scatter_reduce_(1, row[:, None].expand(pooled.shape), pooled, "amax")

    def merge(self, other: Heatmap) -> None:
        """Add up, or take the larger."""
        if self.cells is None:
            self.__dict__.update(other.__dict__)
        elif other.cells is not None:
            join = torch.add if self.reduce == "mean" else torch.maximum
            self.cells = join(self.cells, other.cells)

    def result(self) -> Tensor:
        """(H, rows, columns)."""
        cells = _given(self.cells)
        if self.reduce == "max":
            return cells
        return cells / (self.heights[:, None] * self.widths).to(cells)

    def _columns(self, part: Tensor, columns: slice) -> Tensor:
        """(h, n, columns of cells that the part touches)."""
        width = int(self.widths[0])
        before, after = columns.start % width, -columns.stop % width
        cells = F.pad(part, (before, after)).unflatten(-1, (-1, width))
        return cells.sum(dim=-1) if self.reduce == "mean" else cells.amax(dim=-1)


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, descending, and where they are; of equal ones the first.

    Hidden ones are in any order. torch.topk takes any of equal ones, in any order, so where there
    are some it is asked for one more: only if that equals the last are others of that size left.
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
    """Where the largest are (rows, k), with the first of all those that equal the last."""
    k, last = values.shape[-1], values[:, -1:]
    keys = torch.arange(scores.shape[-1], device=scores.device)
    first = keys.where(scores == last, len(keys)).topk(k, dim=-1, largest=False).values
    larger = values > last
    rank = torch.arange(k, device=scores.device) - larger.sum(dim=-1, keepdim=True)
    return places.where(larger, first.gather(-1, rank.clamp(min=0)))


def _given(found: T | None) -> T:
    if found is None:
        raise HeedfulError("a statistic of no block", expected="update(block) before result()")
    return found


def mean(values: Tensor) -> Tensor:
    """(H,), over the queries that have a number."""
    return values.nanmean(dim=-1)


def _products(weights: Tensor, scores: Tensor, less: Tensor) -> Tensor:
    """Σₘ weights · (scores − less) of each row, (h, n).

    On a CPU in one pass and no memory: it is the gradient of batch norm's weight, with a row for a
    channel. Nothing else in torch multiplies and adds up at once.
    """
    if not weights.is_cpu:
        return (weights * (scores - less[..., None])).sum(dim=-1)
    rows = (1, less.numel(), -1)
    ones = torch.ones_like(less).view(-1)
    _, found, _ = torch.ops.aten.native_batch_norm_backward(
        weights.view(rows), scores.view(rows), None, less.view(-1), ones, None, None,
        False, 0.0, [False, True, False],
    )  # fmt: skip
    return found.view(less.shape)


def _of_sums(block: Block, values: Tensor) -> Tensor:
    """Values (h or none, n) times the sum of each row: 1 but for a sink, which takes its share."""
    return values * block.weights.sum(dim=-1) if block.has_sink else values


def _meeting(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


def _from(part: range, whole: range) -> slice:
    """Where a part stands in the whole."""
    return slice(part.start - whole.start, part.stop - whole.start)


def _cells(total: int, size: int) -> Tensor:
    """How long each of at most `size` pieces is: equal ones, and the last what is left."""
    step = max(1, -(-total // size))
    starts = torch.arange(0, total, step)
    return (total - starts).clamp(max=step)
