"""A weight map in blocks of full rows, so that memory does not grow with N × M.

Each block has some queries of some heads, and all keys that these queries may attend to, so rows
can be normalised. Keys that are masked for every query of a block are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import as_slice
from heedful.ops.inputs import MASKED_SCORE, AttentionInputs, add_sink, block_entries, sinks_of
from heedful.ops.score_blocks import Allowed, allowed_to, fill_scores

# Queries of a block, if memory allows, on a CPU and on an accelerator. Products of smaller blocks
# are slow; in larger blocks, fewer keys are masked for all queries and can be left out
QUERIES, ACCELERATOR_QUERIES = 256, 1024


class Block(NamedTuple):
    """Full rows of some heads; all keys outside `keys` are masked.

    weights: (h, n, m); zero in fully masked rows.
    scores: (h, n, m), finite; `MASKED_SCORE` where masked.
    highest, largest: (h, n), the highest score and the largest weight of each row.
    log_sum_above_highest: (h, n), log Σₘ exp(score − highest) of each row, with its sink. The row's
        log-sum-exp is `highest` plus this number; stored separately, both keep all their digits.
    empty: (h, n), True for fully masked rows; None if there is no such row.
    allowed: which keys each query may attend to.
    heads, queries, keys: the part of the map.
    shape: (H, N, M) of the map.
    offset: the position of the map's first query among the keys, see `AttentionInputs.offset`.
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
        """log Σₘ exp(score) of each row, with its sink, (h, n); −inf in fully masked rows."""
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
        """The position of the block's first query, relative to the block's first key."""
        return self.queries.start + self.offset - self.keys.start


def blocks(
    inputs: AttentionInputs,
    *,
    entries: int | None = None,
    queries: int | None = None,
    within: range | None = None,
) -> Iterator[Block]:
    """Yield the map in blocks; the next block overwrites the tensors of the previous one.

    Args:
        inputs: query, key, mask, … of the map.
        entries: the maximum number of weights in a block; but a block has at least one row of all
            heads that share a key head. The default is larger on an accelerator.
        queries: the maximum number of rows per head. The default is larger on an accelerator.
        within: the rows, as a range without a step; default all.

    Raises:
        ArgumentError: a range with a step.
    """
    within = range(inputs.shape[1]) if within is None else within
    if within.step != 1:
        raise ArgumentError(f"rows {within}", expected="a range without a step")
    inputs = inputs.upcast()
    H, N, M = inputs.shape
    group = H // inputs.key.shape[0]
    entries = entries or block_entries(inputs.query)
    queries = queries or (QUERIES if inputs.query.is_cpu else ACCELERATOR_QUERIES)
    rows = max(1, min(queries, N, entries // max(1, group * M)))
    size = min(max(entries, group * rows * M), H * N * M)
    buffers = [inputs.query.new_empty(size) for _ in range(2)]
    if not N:  # a text of only padding: an empty block gives each statistic its shape
        no_keys = Allowed(range(0), [], ahead=False)
        yield _block(inputs, slice(0, H), range(0), no_keys, buffers)
    for start in within[::rows]:
        run = range(start, min(start + rows, within.stop))
        allowed = allowed_to(inputs, run)
        fit = entries // max(1, len(run) * len(allowed.keys)) // group
        step = _products_per_block(H // group, fit, inputs.query) * group
        for first in range(0, H, step):
            yield _block(inputs, slice(first, min(first + step, H)), run, allowed, buffers)


def _products_per_block(products: int, fit: int, like: Tensor) -> int:
    """Return how many products a block computes at once, if `fit` of them fit into memory.

    Blocks get nearly equal sizes. On a CPU each thread computes complete products, so the result is
    a multiple of the threads if possible: with three products, one of two threads would be idle.
    """
    at_once = -(-products // -(-products // max(1, fit)))
    threads = torch.get_num_threads() if like.is_cpu else 1
    return at_once - at_once % threads if threads < at_once < products else at_once


def _block(
    inputs: AttentionInputs, heads: slice, queries: range, allowed: Allowed, buffers: list[Tensor]
) -> Block:
    allowed = allowed.of_heads(heads)
    shape = (heads.stop - heads.start, len(queries), len(allowed.keys))
    scores, weights = (buffer[: shape[0] * shape[1] * shape[2]].view(shape) for buffer in buffers)
    fill_scores(scores, inputs, heads, queries, allowed)
    sinks = None if inputs.sinks is None else sinks_of(inputs.sinks[heads], as_slice(queries))
    mask_has_no_empty_row = inputs.mask is None or inputs.mask.has_no_empty_row(inputs.shape)
    has_no_empty_row = inputs.bias is None and mask_has_no_empty_row
    row_values = _normalise(scores, weights, sinks, has_no_empty_row)
    return Block(
        weights, scores, *row_values, allowed, heads, queries, allowed.keys, inputs.shape,
        inputs.offset, inputs.sinks is not None,
    )  # fmt: skip


def _normalise(
    scores: Tensor, weights: Tensor, sinks: Tensor | None, has_no_empty_row: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Write the weights; return `highest`, `largest`, `log_sum_above_highest`, `empty` of a block.

    `has_no_empty_row` is True if no row can be fully masked.
    """
    if not scores.numel():
        zeros = scores.new_zeros(scores.shape[:2])
        return zeros, zeros, zeros, torch.ones_like(zeros, dtype=torch.bool)
    torch.softmax(scores, dim=-1, out=weights)
    highest, largest = scores.amax(dim=-1), weights.amax(dim=-1)
    # The largest weight is 1 / Σ exp(score − highest); 0.0 − x avoids −0
    log_sum_above_highest = 0.0 - largest.log()
    if sinks is not None:
        log_sum_above_highest = add_sink(weights, log_sum_above_highest, sinks.to(scores) - highest)
        largest = (-log_sum_above_highest).exp()
    if has_no_empty_row or bool(highest.min() > MASKED_SCORE / 2):
        return highest, largest, log_sum_above_highest, None
    empty = highest <= MASKED_SCORE / 2
    weights.masked_fill_(empty[..., None], 0.0)
    return highest, largest.masked_fill(empty, 0.0), log_sum_above_highest, empty
