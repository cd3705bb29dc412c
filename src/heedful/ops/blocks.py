"""A map of weights in blocks of whole rows, so that nothing grows with N × M.

Each block has some queries of some heads, and the keys that these can see; whole rows need no
second pass to be normalised. Keys that the mask hides from all queries of a block are skipped,
and where it shows all of them it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN, Causes, add_sink, entries_of, rows_of, sinks_of

# Of a block, where they fit: fewer make slow products, more skip less of the mask
QUERIES, ELSEWHERE = 128, 1024


class Block(NamedTuple):
    """Whole rows of some heads; what is not among `keys` is hidden.

    weights: (h, n, m); zero in rows that may attend to nothing.
    scores: (h, n, m), masked; finite, and `HIDDEN` where hidden.
    highest, largest: (h, n), the highest score and the largest weight of each row.
    log_sum: (h, n), how far the row's log-sum-exp, sink included, is above its highest score.
    empty: (h, n), rows that may attend to nothing; None where there is none.
    allowed: (h or 1, n, m), what may attend; None where all may.
    heads, queries, keys: where it stands in the map.
    shape: (H, N, M) of the map.
    offset: the position of its first query, see `Causes`.
    has_sink: whether a learned sink takes a share of each row.
    """

    weights: Tensor
    scores: Tensor
    highest: Tensor
    largest: Tensor
    log_sum: Tensor
    empty: Tensor | None
    allowed: Allowed
    heads: slice
    queries: range
    keys: range
    shape: tuple[int, int, int]
    offset: int
    has_sink: bool

    @property
    def total(self) -> Tensor:
        """(h, n), the log-sum-exp of each row, sink included; −inf where nothing is seen."""
        total = self.highest + self.log_sum
        return total if self.empty is None else total.masked_fill(self.empty, -torch.inf)

    @property
    def rows(self) -> slice:
        """The queries as a slice of N."""
        return slice(self.queries.start, self.queries.stop)

    @property
    def columns(self) -> slice:
        """The keys as a slice of M."""
        return slice(self.keys.start, self.keys.stop)

    @property
    def position(self) -> int:
        """p(n) of the first query, counted from the block's first key."""
        return self.queries.start + self.offset - self.keys.start


class Allowed(NamedTuple):
    """What the queries of a run may see of its keys, where that is not certain.

    keys: those that some query can see.
    parts: (where among them, boolean (h or 1, n, part)); beside them, all may attend.
    ahead: whether a query might see a key after itself.
    """

    keys: range
    parts: list[tuple[slice, Tensor]]
    ahead: bool

    def seen_by(self, queries: int) -> Tensor | int:
        """How many of the queries may see each key: (h or 1, m), or a number."""
        if not self.parts:
            return queries
        heads = max(len(part) for _, part in self.parts)
        counts = torch.full((heads, len(self.keys)), queries)
        for where, part in self.parts:
            counts[:, where] = part.sum(dim=-2).cpu()
        return counts

    def choices(self, queries: int) -> Tensor:
        """How many keys each of the queries may see: (h or 1, n)."""
        certain = len(self.keys)
        heads = max((len(part) for _, part in self.parts), default=1)
        counts = torch.zeros(heads, queries, dtype=torch.long)
        for _, part in self.parts:
            certain -= part.shape[-1]
            counts += part.sum(dim=-1).cpu()
        return counts + certain

    def of_heads(self, heads: slice) -> Allowed:
        """For some of the heads, where they differ."""
        cut = [(where, part[heads] if len(part) > 1 else part) for where, part in self.parts]
        return self._replace(parts=cut)


def blocks(
    causes: Causes, *, entries: int | None = None, queries: int | None = None
) -> Iterator[Block]:
    """The whole map, block after block.

    A block's tensors are overwritten by the next one.

    Args:
        causes: what the map is a function of.
        entries: how many weights a block may have; at least one row of the heads that share a
            key head is computed at once.
        queries: how many rows of a head. Both are larger on an accelerator by default.
    """
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
    for start in range(0, N, rows):
        run = range(start, min(start + rows, N))
        allowed = _allowed(of, run)
        fit = entries // max(1, len(run) * len(allowed.keys)) // group
        pieces = -(-H // (max(1, fit) * group))
        step = -(-H // (pieces * group)) * group  # of one size: threads share a block's heads
        for first in range(0, H, step):
            yield _block(of, slice(first, min(first + step, H)), run, allowed, buffers)


def _allowed(of: Causes, queries: range) -> Allowed:
    own, M = queries.start + of.offset, of.shape[-1]
    if of.mask is None:
        return Allowed(range(M), [], ahead=own + 1 < M)
    keys = of.mask.span(queries, of.shape)
    parts = []
    for part in _beside(keys, of.mask.certain(queries, of.shape)):
        rows, columns = slice(queries.start, queries.stop), slice(part.start, part.stop)
        table = of.mask.crop(of.shape, rows, columns, of.query.device)
        table = table if table.ndim == 3 else table[None]
        parts.append((slice(part.start - keys.start, part.stop - keys.start), table))
    return Allowed(keys, parts, _ahead(keys, parts, own - keys.start))


def _ahead(keys: range, parts: list[tuple[slice, Tensor]], own: int) -> bool:
    """False where keys after the first query's own are all in the last part, and hidden there."""
    if len(keys) <= own + 1:
        return False
    if not parts or parts[-1][0].stop < len(keys) or parts[-1][0].start > own + 1:
        return True
    where, part = parts[-1]
    return bool(part.triu(own + 1 - where.start).any())


def _beside(keys: range, certain: range) -> list[range]:
    """What of the keys is not certain: all of them, or what stands left and right."""
    if not len(certain):
        return [keys] if len(keys) else []
    left = range(keys.start, max(keys.start, certain.start))
    right = range(min(keys.stop, certain.stop), keys.stop)
    return [part for part in (left, right) if len(part)]


def _block(
    of: Causes, heads: slice, queries: range, allowed: Allowed, buffers: list[Tensor]
) -> Block:
    allowed = allowed.of_heads(heads)
    shape = (heads.stop - heads.start, len(queries), len(allowed.keys))
    scores, weights = (buffer[: shape[0] * shape[1] * shape[2]].view(shape) for buffer in buffers)
    _fill_scores(scores, of, heads, queries, allowed)
    sinks = None if of.sinks is None else sinks_of(of.sinks[heads], _slice(queries))
    sees = of.bias is None and (of.mask is None or of.mask.leaves_every_row(of.shape))
    highest, largest, log_sum, empty = _normalise(scores, weights, sinks, sees)
    has_sink = of.sinks is not None
    return Block(
        weights,
        scores,
        highest,
        largest,
        log_sum,
        empty,
        allowed,
        heads,
        queries,
        allowed.keys,
        of.shape,
        of.offset,
        has_sink,
    )


def _fill_scores(
    scores: Tensor, of: Causes, heads: slice, queries: range, allowed: Allowed
) -> None:
    rows, columns = slice(queries.start, queries.stop), _slice(allowed.keys)
    group = of.shape[0] // of.key.shape[0]
    sharing = slice(heads.start // group, heads.stop // group)
    # Heads that share a key head are rows of one product, which scales as it goes
    key = of.key[sharing, columns]
    query = of.query[heads, rows].reshape(len(key), group * len(queries), key.shape[-1])
    out = scores.view(*query.shape[:2], len(allowed.keys))
    torch.baddbmm(out, query, key.mT, beta=0, alpha=of.scale, out=out)
    if of.softcap is not None:
        scores.div_(of.softcap).tanh_().mul_(of.softcap)
    if of.bias is not None:
        bias = rows_of(of.bias, rows)
        bias = bias[heads] if bias.ndim == 3 and len(bias) > 1 else bias
        scores += bias if bias.shape[-1] == 1 else bias[..., columns]
        scores.clamp_(min=HIDDEN)
    hidden = scores.new_full((), HIDDEN)
    for where, table in allowed.parts:  # torch.where is three times as fast as masked_fill_
        part = scores[:, :, where]
        torch.where(table, part, hidden, out=part)


def _normalise(
    scores: Tensor, weights: Tensor, sinks: Tensor | None, sees: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Write the weights; of each row the highest, the largest, the log_sum; which are empty.

    `sees`: whether every row is known to see a key.
    """
    if not scores.numel():
        none = scores.new_zeros(scores.shape[:2])
        return none, none, none, torch.ones_like(none, dtype=torch.bool)
    torch.softmax(scores, dim=-1, out=weights)
    highest, largest = scores.amax(dim=-1), weights.amax(dim=-1)
    log_sum = 0.0 - largest.log()  # a pass over the weights, no exponents, and no −0
    if sinks is not None:
        log_sum = add_sink(weights, log_sum, sinks.to(scores) - highest)
        largest = (-log_sum).exp()
    if sees or bool(highest.min() > HIDDEN / 2):
        return highest, largest, log_sum, None
    empty = highest <= HIDDEN / 2
    weights.masked_fill_(empty[..., None], 0.0)
    return highest, largest.masked_fill(empty, 0.0), log_sum, empty


def _slice(these: range) -> slice:
    return slice(these.start, these.stop)
