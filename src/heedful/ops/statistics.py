"""Statistics of a weight map, computed block by block.

W is the map of one head: rows are queries n (N of them), columns are keys m (M). Query n has
position p(n) = n + M − N. If there are more queries than keys, the mask's offset, if set, replaces
M − N. A query that may attend to no key has NaN in row statistics (−inf in `LogSumExp`) and is left
out of means.

`Diagonal`, `Sink`, `Nearby` and `Matching` are the weight of a query on certain keys. They are NaN
for a query without a choice: one that may attend to none of these keys, or to no others. In causal
attention, this is the first query, which attends only to itself. NaN excludes such queries from
means.

A statistic is updated with the blocks of a map in any order. `result()` returns its value.

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
from heedful.ops.inputs import AttentionInputs, no_autocast
from heedful.ops.weight_blocks import Block, blocks

T = TypeVar("T")


def gather(inputs: AttentionInputs, *statistics: Statistic, **options: Any) -> list[Any]:
    """Compute statistics in one pass over the rows of a map, and return their results in order.

    Args:
        inputs: query, key, mask, … of the map.
        statistics: statistics that include no block yet.
        options: passed to `blocks`: `within` (the rows), `entries` and `queries` (block size).
    """
    with no_autocast(inputs.query):
        for block in blocks(inputs, **options):
            for statistic in statistics:
                statistic.update(block)
    return [statistic.result() for statistic in statistics]


class Statistic(ABC):
    """Base class of statistics that are computed over the blocks of a map."""

    @abstractmethod
    def update(self, block: Block) -> None:
        """Include a block."""

    @abstractmethod
    def result(self) -> Any:
        """Return the value of the statistic."""

    def required(self, value: T | None) -> T:
        """Return the value; raise `HeedfulError` if it is None because there was no block."""
        if value is None:
            raise HeedfulError("a statistic of no block", expected="update(block) before result()")
        return value


class RowStatistic(Statistic):
    """Base class of statistics with a value for each query, (H, N); subclasses define `compute`.

    empty_value: the value of a query that may attend to no key.
    """

    empty_value = torch.nan
    values: Tensor | None = None

    @abstractmethod
    def compute(self, block: Block) -> Tensor:
        """Return the values of a block, (h, n)."""

    def update(self, block: Block) -> None:
        """Store the values of the block's rows."""
        if self.values is None:
            self.values = block.weights.new_full(block.shape[:2], torch.nan)
        values = self.compute(block) if len(block.keys) else self.empty_value
        self.values[block.heads, block.rows] = values
        if block.empty is not None:
            self.values[block.heads, block.rows].masked_fill_(block.empty, self.empty_value)

    def result(self) -> Tensor:
        """Return the values, (H, N)."""
        return self.required(self.values)


class Entropy(RowStatistic):
    """−Σₘ W log W, in nats: 0 if one key has all the weight, log(n) if n keys share it equally."""

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n).

        log W = (score − highest) − log_sum_above_highest needs no logarithm per weight. Both terms
        and their rounding errors are small even for large scores.
        """
        below = _weighted_sums(block.weights, block.scores, block.highest)
        return (_times_sums(block, block.log_sum_above_highest) - below).clamp(min=0)


class LargestWeight(RowStatistic):
    """The largest weight of each row."""

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        return block.largest


class LargestScore(RowStatistic):
    """The largest allowed score of each row, the input of the softmax."""

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        return block.highest


class Distance(RowStatistic):
    """Σₘ W · |p(n) − m|: the mean distance between a query and its keys, in tokens.

    Σ W · (p(n) − m) = p(n) − Σ W · m needs a single product. A key after the query enters this sum
    negatively, so twice its weighted distance is added.
    """

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        weights, first = block.weights, block.position
        n, m = weights.shape[1:]
        # Positions relative to the block's first query: small numbers, small rounding errors
        keys = torch.arange(-first, m - first, dtype=weights.dtype, device=weights.device)
        queries = torch.arange(n, dtype=weights.dtype, device=weights.device)
        # torch parallelises bmm over heads, but not one matrix product
        moment = torch.bmm(keys.expand(len(weights), 1, m), weights.mT)[:, 0]
        distances = _times_sums(block, queries) - moment
        start = min(max(first, 0), m)
        if block.allowed.ahead:
            later = (keys[start:] - queries[:, None]).clamp(min=0)
            distances += 2 * torch.linalg.vecdot(weights[:, :, start:], later)
        return distances


class Diagonal(RowStatistic):
    """W[n, p(n) − offset]: the weight on the token itself (offset 0) or on the previous token (1).

    NaN for a query without a choice, see the top of this module.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        first = block.position - self.offset
        columns = torch.arange(first, first + len(block.queries), device=block.weights.device)
        return _weights_at(block, columns)


class Sink(RowStatistic):
    """W[n, first]: the weight on the first real key, by default key 0, from queries after it.

    NaN for a query without a choice, see the top of this module. In cross-attention (`crosses`) the
    queries have no position among the keys, so none of them is left out for its position.
    """

    def __init__(self, first: int = 0, *, crosses: bool = False) -> None:
        self.first, self.crosses = first, crosses

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        first = self.first - block.keys.start
        columns = torch.full((len(block.queries),), first, device=block.weights.device)
        values = _weights_at(block, columns)
        if not self.crosses:
            values[:, : max(0, first + 1 - block.position)] = torch.nan
        return values


class Nearby(RowStatistic):
    """Σ W[n, m] over keys at most `reach` tokens away, including the token itself.

    NaN for a query without a choice, see the top of this module.
    """

    def __init__(self, reach: int) -> None:
        self.reach = reach

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        device = block.weights.device
        keys = torch.arange(-block.position, len(block.keys) - block.position, device=device)
        queries = torch.arange(len(block.queries), device=device)
        near = (keys - queries[:, None]).abs() <= self.reach
        return _summed(block, near)


class NormalizedEntropy(RowStatistic):
    """Entropy divided by log(number of allowed keys): 1 if all allowed keys have equal weight.

    NaN for a query that may attend to only one key and so has no choice.
    """

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        keys = block.allowed.keys_per_query(len(block.queries)).to(block.weights)
        entropy = Entropy().compute(block)
        return torch.where(keys > 1, entropy / keys.log(), torch.nan)


class Matching(RowStatistic):
    """Σ W[n, m] over earlier keys m for which token m − shift equals the token of the query.

    With shift 0 these keys are earlier occurrences of the query's token. With shift 1 they are
    the tokens after these, as for induction heads. NaN for a query without a choice, see the top of
    this module.

    Args:
        ids: (M,), the token id of each key, and of the query at the same position.
        shift: 0 or more.
        unknown: the id of unknown words; two unknown words do not count as the same token.
    """

    def __init__(self, ids: Tensor, shift: int, unknown: int | None = None) -> None:
        self.ids, self.shift, self.unknown = ids, shift, unknown

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        ids, M = self.ids.to(block.weights.device), block.shape[-1]
        offset = block.position + block.keys.start
        positions = torch.arange(len(block.queries), device=ids.device) + offset
        queries = positions.clamp(0, M - 1)
        keys = torch.arange(M, device=ids.device)[block.columns]
        tokens = ids[(keys - self.shift).clamp(min=0)]
        earlier = (keys >= self.shift) & (keys < queries[:, None])
        matches = (tokens == ids[queries][:, None]) & earlier
        has_token = positions == queries  # a query without a key at its position has no token
        if self.unknown is not None:
            has_token = has_token & (ids[queries] != self.unknown)
        return _summed(block, matches & has_token[:, None])


class LogSumExp(RowStatistic):
    """log Σₘ exp(score) of each row; any weight of the row is exp(score − log-sum-exp).

    Args:
        exact: False saves a pass over the weights, but keeps the rounding error that torch's
            softmax makes in long rows of nearly equal numbers: up to 10⁻⁴ at 100,000 keys.
    """

    empty_value = -torch.inf

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n); the sum includes the sink."""
        if not self.exact or block.has_sink:
            return block.log_sum_exp
        # The weights do not sum to exactly 1: their sum measures the rounding error of softmax
        return block.log_sum_exp + block.weights.sum(dim=-1).log()


class Undefined(RowStatistic):
    """NaN for every query: in cross-attention, queries have no position among the keys."""

    def compute(self, block: Block) -> Tensor:
        """Return the values of the block, (h, n)."""
        return torch.full_like(block.highest, torch.nan)


class LearnedSink(RowStatistic):
    """1 − Σₘ W: the weight of the learned sink."""

    def compute(self, block: Block) -> Tensor:
        """Return the values, (h, n); exactly 0 without a sink, despite rounding of the sums."""
        return 1 - block.weights.sum(dim=-1) if block.has_sink else torch.zeros_like(block.highest)


class Received(Statistic):
    """Σₙ W[n, m] per key m, (H, M); `mean` divides by the number of n that may attend to m."""

    def __init__(self, mean: bool = False) -> None:
        self.mean = mean
        self.sums: Tensor | None = None
        self.counts: Tensor | None = None

    def update(self, block: Block) -> None:
        """Add the columns of a block."""
        H, _, M = block.shape
        if self.sums is None or self.counts is None:
            # In float64: a column can have very many queries, and rounding errors would add up
            self.sums = block.weights.new_zeros(H, M, dtype=torch.float64)
            self.counts = torch.zeros(H, M, dtype=torch.int64, device="cpu")
        self.sums[block.heads, block.columns].add_(block.weights.sum(dim=1))
        if self.mean:
            counts = block.allowed.queries_per_key(len(block.queries))
            self.counts[block.heads, block.columns] += counts

    def result(self) -> Tensor:
        """Return the values, (H, M); with `mean`, NaN for a key that no query may attend to."""
        sums = self.required(self.sums)
        return (sums / self.required(self.counts).to(sums) if self.mean else sums).float()


def mean(values: Tensor) -> Tensor:
    """Return the mean over the queries, (H,), ignoring NaN."""
    return values.nanmean(dim=-1)


def _weights_at(block: Block, columns: Tensor) -> Tensor:
    """Return W[n, columns[n]], (h, n), with columns of the block; NaN without a choice."""
    index = columns.clamp(0, len(block.keys) - 1).expand(len(block.weights), -1)
    values = block.weights.gather(-1, index[..., None])[..., 0]
    return _with_choice(block, values, block.allowed.allows(columns).long())


def _summed(block: Block, pairs: Tensor) -> Tensor:
    """Return the sums of weights over pairs (n, m), (h, n); NaN for queries without a choice."""
    sums = (block.weights * pairs.to(block.weights)).sum(dim=-1)
    return _with_choice(block, sums, block.allowed.keys_per_query(len(pairs), pairs))


def _with_choice(block: Block, values: Tensor, counts: Tensor) -> Tensor:
    """Set values to NaN unless a query may attend to some keys of a score and to some others.

    counts: (h or 1, n), the number of keys of the score that each query may attend to.
    """
    counts = counts.cpu()
    has_choice = (counts > 0) & (counts < block.allowed.keys_per_query(len(block.queries)))
    return torch.where(has_choice.to(values.device), values, torch.nan)


def _weighted_sums(weights: Tensor, scores: Tensor, subtrahend: Tensor) -> Tensor:
    """Return Σₘ weights · (scores − subtrahend) of each row, (h, n).

    On a CPU, the backward pass of torch's batch norm computes these sums without a table of
    products: each row is passed as a channel, and its sum is the gradient of the channel's weight.
    """
    if not weights.is_cpu:
        return (weights * (scores - subtrahend[..., None])).sum(dim=-1)
    rows = (1, subtrahend.numel(), -1)
    ones = torch.ones_like(subtrahend).view(-1)
    _, sums, _ = torch.ops.aten.native_batch_norm_backward(
        weights.view(rows), scores.view(rows), None, subtrahend.view(-1), ones, None, None,
        False, 0.0, [False, True, False],
    )  # fmt: skip
    return sums.view(subtrahend.shape)


def _times_sums(block: Block, values: Tensor) -> Tensor:
    """Multiply values (n,) or (h, n) by the sum of each row's weights (1 without a sink)."""
    return values * block.weights.sum(dim=-1) if block.has_sink else values
