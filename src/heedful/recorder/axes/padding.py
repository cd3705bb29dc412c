"""Decides for each sequence of a call which queries and keys are real, and what its mask is.

Padding is left out where the call's own mask hides it: attention may ignore a mask of the inputs.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.ops.indexing import ALL, Index
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Padding, Window
from heedful.recorder.axes.mask_structure import recognise
from heedful.recorder.observed_call import Observed, Real
from heedful.recording.mask_groups import tables_of
from heedful.recording.real_tokens import RealTokens, of_sequence, row_of, stand_together


def tokens_of(seen: Observed, real: Real | None = None, is_full: bool = False) -> list[RealTokens]:
    """The real tokens of each sequence of a call, whose mask has been split from its bias.

    real: which tokens are no padding by the inputs; default all.
    is_full: whether the keys are no cache with room behind its tokens.
    """
    real, has_room = real or Real(), not (seen.cross or is_full)
    first = _first_alike(seen, real)
    chosen = sorted({*first})
    is_told = real.keys is not None and real.queries is None and not seen.cross
    start = _start(seen, chosen) if is_told else None
    tokens = {b: _tokens(seen, b, real, start, has_room) for b in chosen}
    return [tokens[b] for b in first]


def keys_seen(seen: Observed) -> Tensor:
    """The keys that some query sees in each sequence, by the call's own mask, (B, M)."""
    B, M = len(seen.query), seen.shape[3]
    of_each = [_crop(seen.mask, seen, b, ALL, ALL).expand(-1, -1, M) for b in range(B)]
    return torch.stack([sees.flatten(0, 1).any(dim=0) for sees in of_each])


def _first_alike(seen: Observed, real: Real) -> list[int]:
    """For each sequence the first with the same mask and padding: windows of an image are
    thousands of sequences with a handful of masks."""
    B = len(seen.query)
    tables = [real.keys, real.queries, *_tables_by_sequence(seen.mask)]
    several = [table for table in tables if table is not None and len(table) > 1]
    if any(B % len(table) for table in several):
        return [*range(B)]
    several = [table for table in several if not torch.equal(table, table[:1].expand_as(table))]
    rows = [table.flatten(1).cpu().numpy() for table in several]
    firsts: dict[tuple[bytes, ...], int] = {}
    keys = (tuple(table[b // (B // len(table))].tobytes() for table in rows) for b in range(B))
    return [firsts.setdefault(key, b) for b, key in enumerate(keys)]


def _tables_by_sequence(mask: Mask | Tensor | None) -> list[Tensor]:
    """The tables (B, …) of a mask that have a row for each sequence."""
    if isinstance(mask, Combined):
        return [table for part in mask.parts for table in _tables_by_sequence(part)]
    tables = tables_of(mask) if isinstance(mask, Mask) else [mask] if mask is not None else []
    return [table for table in tables if table.ndim >= (2 if isinstance(mask, Padding) else 4)]


def _tokens(
    seen: Observed, sequence: int, real: Real, start: int | None, has_room: bool
) -> RealTokens:
    _, H, N, M = seen.shape
    queries, keys = torch.arange(N, device="cpu"), torch.arange(M, device="cpu")
    real_queries, real_keys = _real(seen, sequence, real, start, queries, keys)
    # where no query is told to be a token, none is left that the call could hide keys from
    asking = queries if real.is_guess or not len(real_queries) else real_queries
    if len(real_keys) == M or _hides(seen, sequence, asking, real_keys):
        queries, keys = real_queries, real_keys
    mask = _mask_of(seen, sequence, queries, keys)
    end = _end(mask, (H, len(queries), len(keys)), seen.query.device)
    if has_room and len(queries) <= end < len(keys):
        keys = keys[:end]  # statistics expect the last query at the last key
        mask = _mask_of(seen, sequence, queries, keys)
    return RealTokens(queries, keys, recognise(mask, (H, len(queries), len(keys))))


def _end(mask: Mask | None, shape: tuple[int, int, int], device: torch.device) -> int:
    """The number of keys up to the last that any query sees; a cache is empty after that."""
    _, N, M = shape
    if mask is None or N >= M or not N:
        return M
    if not isinstance(mask, Dense):
        return mask.span(range(N), shape).stop
    seen = mask.crop(shape, device=device).flatten(0, -2).any(dim=0).nonzero()
    return int(seen.max()) + 1 if len(seen) else M


def _real(
    seen: Observed, sequence: int, real: Real, start: int | None, queries: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Of the indices of queries and keys those of real tokens; the first query is at `start`."""
    B, N = len(seen.query), len(queries)
    if real.keys is not None:
        row = row_of(sequence, len(real.keys), B)
        keys = keys if row is None else real.keys[row].bool().nonzero()[:, 0].cpu()
    if real.queries is not None:
        row = row_of(sequence, len(real.queries), B)
        queries = queries if row is None else real.queries[row].bool().nonzero()[:, 0].cpu()
    elif start is not None:
        at_keys = keys - start
        at_keys = at_keys[(at_keys >= 0) & (at_keys < N)]
        queries = at_keys if len(at_keys) or not len(keys) else queries  # else elsewhere
    return queries, keys


def _start(seen: Observed, chosen: list[int]) -> int:
    """The key at which the first query stands: the last one stands at the last key that it sees in
    any sequence. A cache may have room behind, and queries that are padding may see all keys."""
    N, M = seen.shape[2:]
    if N >= M or seen.mask is None:
        return M - N
    last = (_crop(seen.mask, seen, sequence, slice(N - 1, N), ALL) for sequence in chosen)
    places = torch.stack([sees.expand(-1, -1, M).flatten(0, 1).any(dim=0) for sees in last])
    ends = places.any(dim=0).nonzero() + 1
    return max(0, int(ends.max()) - N) if len(ends) else M - N


def _hides(seen: Observed, sequence: int, queries: Tensor, keys: Tensor) -> bool:
    """Whether the call's own mask hides all other keys from these queries."""
    others = torch.ones(seen.shape[-1], dtype=torch.bool, device="cpu")
    others[keys] = False
    return not bool(_crop(seen.mask, seen, sequence, queries, others.nonzero()[:, 0]).any())


def _crop(
    mask: Mask | Tensor | None, seen: Observed, sequence: int, queries: Index, keys: Index
) -> Tensor:
    """Which of these keys these queries see by a mask, (1 or H, n, m); may broadcast."""
    device = seen.query.device
    if mask is None:
        return torch.ones((1, 1, 1), dtype=torch.bool, device=device)
    mask = mask if isinstance(mask, Mask) else Dense(mask)
    return of_sequence(mask.crop(seen.shape, queries, keys, device), sequence)


def _mask_of(seen: Observed, sequence: int, queries: Tensor, keys: Tensor) -> Mask | None:
    """The mask over some queries and keys, as a structure where it is one, else as a table."""
    parts = seen.mask.parts if isinstance(seen.mask, Combined) else (seen.mask,)
    structures = []
    for part in parts:
        is_padding = isinstance(part, Padding)  # without effect where all these keys are real
        if part is None or (is_padding and _crop(part, seen, sequence, queries[:1], keys).all()):
            continue
        structure = _structure(part, seen.shape, queries, keys)
        if structure is None:
            return Dense(_crop(seen.mask, seen, sequence, queries, keys))
        structures.append(structure)
    return functools.reduce(operator.and_, structures) if structures else None


def _structure(part: Any, shape: tuple[int, ...], queries: Tensor, keys: Tensor) -> Mask | None:
    """A causal mask, a window or ranges over some queries and keys; None for a table."""
    N, M = shape[2:]
    if len(queries) == N and len(keys) == M:
        return part if isinstance(part, Causal | Window | KeyRanges) else None
    if isinstance(part, Causal | Window) and stand_together(queries) and stand_together(keys):
        offset = M - N if part.offset is None else part.offset
        return replace(part, offset=offset + int(queries[0]) - int(keys[0]))
    return None
