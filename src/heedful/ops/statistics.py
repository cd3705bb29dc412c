"""What one asks of a map of weights: each definition once, gathered block by block.

W is the map of one head; rows are queries n (N of them), columns keys m (M). Query n stands at
position p(n) = n + M − N; but at n + offset where there are more queries than keys and the mask
has an offset. A query that may attend to nothing has NaN in every statistic of a row, and is
left out of means.

`Diagonal` and `Sink` are of the queries that have a choice: those after the first key that is no
padding. The query at that key has no token before it, sees in causal attention nothing but itself,
and cannot tell the first token from its own. It has NaN there, so that whoever takes the mean has
the same number under the same name.

Each statistic is updated with the blocks of a map, in any order, and can be merged with one that
saw other blocks of the same map; what it found is in `result()`.

>>> from heedful.ops.inputs import AttentionInputs
>>> from heedful.ops.masks import Causal
>>> words = torch.eye(3).unsqueeze(0)
>>> entropy, received = gather(AttentionInputs(words, words, 1.0, Causal()), Entropy(), Received())
>>> entropy
tensor([[0.0000, 0.5822, 0.9753]])
>>> received
tensor([[1.4809, 0.9430, 0.5761]])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.ops.inputs import AttentionInputs, unrounded
from heedful.ops.weight_blocks import Block, blocks

T = TypeVar("T")


def gather(causes: AttentionInputs, *statistics: Statistic, **parts: Any) -> list[Any]:
    """The results of all statistics, in one pass over every row of a map.

    Args:
        causes: what the map is a function of.
        statistics: fresh ones.
        parts: `within`, the rows; `entries` and `queries` of a block: see `blocks`.
    """
    with unrounded(causes.query):
        for block in blocks(causes, **parts):
            for statistic in statistics:
                statistic.update(block)
    return [statistic.result() for statistic in statistics]


class Statistic(ABC):
    """Something that is gathered over the blocks of a map."""

    @abstractmethod
    def update(self, block: Block) -> None:
        """Take a block in."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Take in what another one of the same kind has seen of the same map."""

    @abstractmethod
    def result(self) -> Any:
        """What was found."""

    def seen(self, found: T | None) -> T:
        """What was found, where a block was seen at all."""
        if found is None:
            raise HeedfulError("a statistic of no block", expected="update(block) before result()")
        return found


class RowStatistic(Statistic):
    """A number for each query, (H, N); defines `of`.

    of_nothing: the number of a query that sees nothing.
    after: queries that stand at this key or before it have no choice, and no number; None where
        all have one.
    """

    of_nothing = torch.nan
    after: int | None = None
    values: Tensor | None = None

    @abstractmethod
    def of(self, block: Block) -> Tensor:
        """(h, n) of a block."""

    def update(self, block: Block) -> None:
        """Write the block's rows."""
        if self.values is None:
            self.values = block.weights.new_full(block.shape[:2], torch.nan)
        found = self.of(block) if len(block.keys) else self.of_nothing
        self.values[block.heads, block.rows] = found
        if block.empty is not None:
            self.values[block.heads, block.rows].masked_fill_(block.empty, self.of_nothing)
        if self.after is not None:
            start = block.queries.start
            first = min(block.queries.stop, self.after + 1 - block.offset)
            if first > start:
                self.values[block.heads, start:first] = torch.nan

    def merge(self, other: RowStatistic) -> None:
        """Rows that only the other has seen are its own."""
        if self.values is None:
            self.values = other.values
        elif other.values is not None:
            self.values = torch.where(self.values.isnan(), other.values, self.values)

    def result(self) -> Tensor:
        """(H, N)."""
        return self.seen(self.values)


class Entropy(RowStatistic):
    """−Σₘ W log W, in nats: 0 where one key has all, log(n) where n keys have the same."""

    def of(self, block: Block) -> Tensor:
        """(h, n), by log W = (score − highest) − log_sum_above_highest.

        That spares the logarithm of every weight. Both terms are small, however large the scores
        are, and so are their rounding errors.
        """
        below = _products(block.weights, block.scores, block.highest)
        return (_of_sums(block, block.log_sum_above_highest) - below).clamp(min=0)


class LargestWeight(RowStatistic):
    """The largest weight of each row."""

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        return block.largest


class LargestScore(RowStatistic):
    """The largest score of each row, among those that the mask allows: scaled, before softmax."""

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        return block.highest


class Distance(RowStatistic):
    """Σₘ W · |p(n) − m|: how far a query looks, in tokens.

    Σ W · (p(n) − m) is p(n) − Σ W · m, one product of the map. A key after the query counts there
    as negative, so twice its distance is added.
    """

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        weights, first = block.weights, block.position
        n, m = weights.shape[1:]
        # Positions are counted from the block's first query: small numbers, small rounding errors
        keys = torch.arange(-first, m - first, dtype=weights.dtype, device=weights.device)
        own = torch.arange(n, dtype=weights.dtype, device=weights.device)
        # A product for each head is shared by threads; a single one of all rows is not
        moment = torch.bmm(keys.expand(len(weights), 1, m), weights.mT)[:, 0]
        found = _of_sums(block, own) - moment
        start = min(max(first, 0), m)
        if block.allowed.ahead:
            later = (keys[start:] - own[:, None]).clamp(min=0)
            found += 2 * torch.linalg.vecdot(weights[:, :, start:], later)
        return found


class Diagonal(RowStatistic):
    """W[n, p(n) − offset]: 0 is the token itself, 1 the one before it.

    NaN for a query that has no such key, and for one without a choice: those up to the first key
    that is no padding, by default key 0.
    """

    def __init__(self, offset: int, first: int = 0) -> None:
        self.offset, self.after = offset, first

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        n, m = block.weights.shape[1:]
        shift = block.position - self.offset
        if 0 <= shift <= m - n:  # most often: every row has that key in this block
            return block.weights.diagonal(shift, dim1=1, dim2=2)
        found = block.weights.new_zeros(len(block.weights), n)
        first = max(0, -shift)
        line = block.weights.diagonal(shift, dim1=1, dim2=2) if -n < shift < m else found[:, :0]
        found[:, first : first + line.shape[-1]] = line
        # A key outside the block is hidden and has 0; one outside the map does not exist
        found[:, : max(0, -shift - block.keys.start)] = torch.nan
        found[:, max(0, block.shape[-1] - block.keys.start - shift) :] = torch.nan
        return found


class Sink(RowStatistic):
    """W[n, first]: the weight on the first key that is no padding, by default key 0.

    NaN for a query without a choice, as in `Diagonal`. Where the keys are those of another text
    (`crosses`), no query stands among them, and all have one.
    """

    def __init__(self, first: int = 0, *, crosses: bool = False) -> None:
        self.first, self.after = first, None if crosses else first

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        if self.first not in block.keys:
            return torch.zeros_like(block.highest)
        return block.weights[:, :, self.first - block.keys.start]


class Nearby(RowStatistic):
    """Σ W[n, m] over keys at most `reach` tokens away, the token itself included.

    NaN for a query that may see no key further away, which has no choice.
    """

    def __init__(self, reach: int) -> None:
        self.reach = reach

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        device = block.weights.device
        keys = torch.arange(-block.position, len(block.keys) - block.position, device=device)
        own = torch.arange(len(block.queries), device=device)
        near = (keys - own[:, None]).abs() <= self.reach
        found = (block.weights * near.to(block.weights)).sum(dim=-1)
        has_choice = block.allowed.choices(len(own), ~near).to(device) > 0
        return torch.where(has_choice, found, torch.nan)


class NormalizedEntropy(RowStatistic):
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
    came after them. NaN for a query that may see no such key.

    Args:
        ids: (M,), the token of each key, and of the query that stands there.
        shift: 0 or more.
        unknown: the id that stands for every word that the tokenizer does not know: it is not the
            same token twice.
    """

    def __init__(self, ids: Tensor, shift: int, unknown: int | None = None) -> None:
        self.ids, self.shift, self.unknown = ids, shift, unknown

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        ids, M = self.ids.to(block.weights.device), block.shape[-1]
        stands = torch.arange(len(block.queries), device=ids.device) + block.position
        own = (stands + block.keys.start).clamp(0, M - 1)
        keys = torch.arange(M, device=ids.device)[block.columns]
        tokens = ids[(keys - self.shift).clamp(min=0)]
        matches = (tokens == ids[own][:, None]) & (keys >= self.shift) & (keys < own[:, None])
        found = (block.weights * matches.to(block.weights)).sum(dim=-1)
        is_key = stands + block.keys.start == own  # a query outside the keys has no token
        has_one = is_key & block.allowed.among(matches).any(dim=-1)
        if self.unknown is not None:
            has_one = has_one & (ids[own] != self.unknown)
        return torch.where(has_one, found, torch.nan)


class LogSumExp(RowStatistic):
    """log Σₘ exp(score) of each row: with it, any weight is exp(score − log-sum-exp).

    Args:
        exact: False spares a pass over the weights, and is off by what torch's softmax loses where
            it adds up a long row of nearly equal numbers: up to 10⁻⁴ at 100,000 keys.
    """

    of_nothing = -torch.inf

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact

    def of(self, block: Block) -> Tensor:
        """(h, n), sink included."""
        if not self.exact or block.has_sink:
            return block.log_sum_exp
        # By as much as a softmax loses of its sum, its weights do not sum to one
        return block.log_sum_exp + block.weights.sum(dim=-1).log()


class Unplaced(RowStatistic):
    """NaN for every query: of what asks for a query's place among keys that are another text's."""

    def of(self, block: Block) -> Tensor:
        """(h, n)."""
        return torch.full_like(block.highest, torch.nan)


class LearnedSink(RowStatistic):
    """1 − Σₘ W: what a learned sink takes."""

    def of(self, block: Block) -> Tensor:
        """(h, n); exactly 0 where there is no sink, though rows add up to 1 only nearly."""
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
            # In float64: a key may be seen by very many queries
            self.sums = block.weights.new_zeros(H, M, dtype=torch.float64)
            self.counts = torch.zeros(H, M, dtype=torch.int64, device="cpu")
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
        sums = self.seen(self.sums)
        return (sums / self.seen(self.counts).to(sums) if self.mean else sums).float()


def mean(values: Tensor) -> Tensor:
    """(H,), over the queries that have a number."""
    return values.nanmean(dim=-1)


def _products(weights: Tensor, scores: Tensor, less: Tensor) -> Tensor:
    """Σₘ weights · (scores − less) of each row, (h, n).

    On a CPU by the gradient of batch norm's weight, which is this sum for each channel; here each
    row is a channel. Nothing else in torch multiplies and adds up in one pass, with no table of
    the products between.
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
    """Values (n) or (h, n) of rows, times the sum of their weights: 1 unless there is a sink."""
    return values * block.weights.sum(dim=-1) if block.has_sink else values
