"""A map of weights in blocks of whole rows, so that nothing grows with N × M.

Each block has some queries of some heads, and all keys that these can see, so that its rows are
normalised at once. Keys that the mask hides from every query of a block are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import as_slice
from heedful.ops.inputs import HIDDEN, AttentionInputs, add_sink, entries_of, sinks_of
from heedful.ops.score_blocks import Allowed, allowed_to, fill_scores

# Queries of a block, where memory allows: with fewer, products are slow; with more, there are
# fewer keys that the mask hides from all of them
QUERIES, ELSEWHERE = 256, 1024


class Block(NamedTuple):
    """Whole rows of some heads; keys that are not among `keys` are hidden from all of them.

    weights: (h, n, m); zero in rows that may attend to nothing.
    scores: (h, n, m), masked; finite, and `HIDDEN` where hidden.
    highest, largest: (h, n), the highest score and the largest weight of each row.
    log_sum_above_highest: (h, n), log Σₘ exp(score − highest) of each row, its sink among the
        scores. Added to `highest` it is the row's log-sum-exp; apart, both keep their digits.
    empty: (h, n), True for rows that may attend to nothing; None where there is no such row.
    allowed: which of its pairs may attend.
    heads, queries, keys: which part of the map it is.
    shape: (H, N, M) of the map.
    offset: the position of its first query, see `AttentionInputs`.
    has_sink: whether a learned sink takes a share of each row.
    """

    weights: Tensor
    scores: Tensor
    highest: Tensor
    largest: Tensor
    log_sum_above_highest: Tensor
    empty: Tensor | None
    allowed: Allowed
    heads: slice
    queries: range
    keys: range
    shape: tuple[int, int, int]
    offset: int
    has_sink: bool

    @property
    def log_sum_exp(self) -> Tensor:
        """(h, n), log Σₘ exp(score), sink included; −inf in rows that may attend to nothing."""
        total = self.highest + self.log_sum_above_highest
        return total if self.empty is None else total.masked_fill(self.empty, -torch.inf)

    @property
    def rows(self) -> slice:
        """The queries as a slice of N."""
        return as_slice(self.queries)

    @property
    def columns(self) -> slice:
        """The keys as a slice of M."""
        return as_slice(self.keys)

    @property
    def position(self) -> int:
        """p(n) of the first query, counted from the block's first key."""
        return self.queries.start + self.offset - self.keys.start


def blocks(
    causes: AttentionInputs,
    *,
    entries: int | None = None,
    queries: int | None = None,
    within: range | None = None,
) -> Iterator[Block]:
    """The whole map, block after block.

    A block's tensors are overwritten by the next one.

    Args:
        causes: what the map is a function of.
        entries: how many weights a block may have. It has one row of all heads that share a key
            head at the least, even where that is more.
        queries: how many rows of a head it may have.
        within: the rows to go through, default all; a range without a step.

    By default the first two are larger on an accelerator.
    """
    within = range(causes.shape[1]) if within is None else within
    if within.step != 1:
        raise ArgumentError(f"rows {within}", expected="a range without a step")
    of = causes.in_precision()
    H, N, M = of.shape
    group = H // of.key.shape[0]
    entries = entries or entries_of(of.query)
    queries = queries or (QUERIES if of.query.is_cpu else ELSEWHERE)
    rows = max(1, min(queries, N, entries // max(1, group * M)))
    size = min(max(entries, group * rows * M), H * N * M)
    buffers = [of.query.new_empty(size) for _ in range(2)]
    if not N:  # padding alone: a block without rows, so that each statistic has its shape
        nothing = Allowed(range(0), [], ahead=False)
        yield _block(of, slice(0, H), range(0), nothing, buffers)
    for start in within[::rows]:
        run = range(start, min(start + rows, within.stop))
        allowed = allowed_to(of, run)
        fit = entries // max(1, len(run) * len(allowed.keys)) // group
        step = _products(H // group, fit, of.query) * group
        for first in range(0, H, step):
            yield _block(of, slice(first, min(first + step, H)), run, allowed, buffers)


def _products(several: int, fit: int, like: Tensor) -> int:
    """How many of several products are made at once, of which so many fit into memory.

    All, or about as many in each block. On a CPU each thread makes whole products: of three, one of
    two threads would make two while the other waits.
    """
    at_once = -(-several // -(-several // max(1, fit)))
    threads = torch.get_num_threads() if like.is_cpu else 1
    return at_once - at_once % threads if threads < at_once < several else at_once


def _block(
    of: AttentionInputs, heads: slice, queries: range, allowed: Allowed, buffers: list[Tensor]
) -> Block:
    allowed = allowed.of_heads(heads)
    shape = (heads.stop - heads.start, len(queries), len(allowed.keys))
    scores, weights = (buffer[: shape[0] * shape[1] * shape[2]].view(shape) for buffer in buffers)
    fill_scores(scores, of, heads, queries, allowed)
    sinks = None if of.sinks is None else sinks_of(of.sinks[heads], as_slice(queries))
    is_sure = of.bias is None and (of.mask is None or of.mask.leaves_every_row(of.shape))
    of_rows = _normalise(scores, weights, sinks, is_sure)
    return Block(
        weights, scores, *of_rows, allowed, heads, queries, allowed.keys, of.shape, of.offset,
        of.sinks is not None,
    )  # fmt: skip


def _normalise(
    scores: Tensor, weights: Tensor, sinks: Tensor | None, is_sure: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Write the weights; `highest`, `largest`, `log_sum_above_highest` and `empty` of a `Block`.

    `is_sure`: every row is known to see a key, so that none can be empty.
    """
    if not scores.numel():
        none = scores.new_zeros(scores.shape[:2])
        return none, none, none, torch.ones_like(none, dtype=torch.bool)
    torch.softmax(scores, dim=-1, out=weights)
    highest, largest = scores.amax(dim=-1), weights.amax(dim=-1)
    # The largest weight is 1 / Σ exp(score − highest); 0.0 − x where −x would be −0
    log_sum_above_highest = 0.0 - largest.log()
    if sinks is not None:
        log_sum_above_highest = add_sink(weights, log_sum_above_highest, sinks.to(scores) - highest)
        largest = (-log_sum_above_highest).exp()
    if is_sure or bool(highest.min() > HIDDEN / 2):
        return highest, largest, log_sum_above_highest, None
    empty = highest <= HIDDEN / 2
    weights.masked_fill_(empty[..., None], 0.0)
    return highest, largest.masked_fill(empty, 0.0), log_sum_above_highest, empty
