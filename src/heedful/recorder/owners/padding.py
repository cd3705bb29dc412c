"""Decides for each sequence of a call which queries and keys are real, and what its mask is.

Padding is left out where the call's own mask hides it. A model may be told of padding that its
attention does not heed, or take something else under the same name: then the map keeps it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Padding, Window
from heedful.ops.score_tables import ALL
from heedful.recorder.observed import Observed, Real
from heedful.recorder.owners.mask_structure import recognise
from heedful.recording.real_tokens import RealTokens, of_sequence, row_of, stand_together, take


def tokens_of(seen: Observed, real: Real | None = None, is_full: bool = False) -> list[RealTokens]:
    """The real tokens of each sequence of a call, whose mask has been split from its bias.

    Args:
        seen: the call.
        real: which tokens are told to be no padding; default all.
        is_full: whether the keys are known to be no cache with room behind its tokens.
    """
    real, has_room = real or Real(), not (seen.cross or is_full)
    first = _first_alike(seen, real)
    chosen = sorted({*first})
    is_told = real.keys is not None and real.queries is None and not seen.cross
    start = _start(seen, chosen) if is_told else None
    tokens = {b: _tokens(seen, b, real, start, has_room) for b in chosen}
    return [tokens[b] for b in first]


def _first_alike(seen: Observed, real: Real) -> list[int]:
    """For each sequence of a batch the first with the same mask, hidden keys and padding.

    Windows of an image are thousands of sequences with a handful of masks.
    """
    B, of_mask = len(seen.query), _batch_tables(seen.mask)
    if B == 1 or of_mask is None:
        return [*range(B)]
    tables = [real.keys, real.queries, *of_mask]
    several = [table for table in tables if table is not None and len(table) > 1]
    if any(B % len(table) for table in several):
        return [*range(B)]
    several = [table for table in several if not torch.equal(table, table[:1].expand_as(table))]
    rows = [table.flatten(1).cpu().numpy() for table in several]
    firsts: dict[tuple[bytes, ...], int] = {}
    keys = (tuple(table[b // (B // len(table))].tobytes() for table in rows) for b in range(B))
    return [firsts.setdefault(key, b) for b, key in enumerate(keys)]


def _batch_tables(mask: Mask | Tensor | None) -> list[Tensor] | None:
    """The tables (B, …) of a mask with a row for each sequence; None for a mask of another class,
    which may allow anything."""
    if mask is None or isinstance(mask, Causal | Window | KeyRanges):
        return []
    if isinstance(mask, Combined):
        parts = [_batch_tables(part) for part in mask.parts]
        known = [tables for tables in parts if tables is not None]
        return [one for tables in known for one in tables] if len(known) == len(parts) else None
    if isinstance(mask, Padding):
        return [mask.keep] if mask.keep.ndim > 1 else []
    table = mask.table if isinstance(mask, Dense) else mask
    if not isinstance(table, Tensor):
        return None
    return [table] if table.ndim > 3 else []


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
    """Of the indices of queries and keys those that were told to be no padding.

    start: the key at which the first query stands, where the keys tell which queries are real.
    """
    B, N = len(seen.query), len(queries)
    if real.keys is not None:
        row = row_of(sequence, len(real.keys), B)
        keys = keys if row is None else real.keys[row].bool().nonzero()[:, 0].cpu()
    if real.queries is not None:
        row = row_of(sequence, len(real.queries), B)
        queries = queries if row is None else real.queries[row].bool().nonzero()[:, 0].cpu()
    elif start is not None:
        queries = keys - start
        queries = queries[(queries >= 0) & (queries < N)]
    return queries, keys


def _start(seen: Observed, chosen: list[int]) -> int:
    """The key at which the first query stands: the last one stands at the last key that any query
    sees, since a cache may have room behind its tokens."""
    N, M = seen.shape[2:]
    if N >= M or seen.mask is None:
        return M - N
    every = [_seen_by(seen, sequence, ALL, ALL) for sequence in chosen]
    seen_keys = torch.stack([sees.expand(-1, -1, M).flatten(0, 1).any(dim=0) for sees in every])
    places = seen_keys.any(dim=0).nonzero()
    end = int(places.max()) + 1 if len(places) else M
    return end - N if end >= N else M - N


def _hides(seen: Observed, sequence: int, queries: Tensor, keys: Tensor) -> bool:
    """Whether the call's own mask hides all other keys from these queries."""
    others = torch.ones(seen.shape[-1], dtype=torch.bool, device="cpu")
    others[keys] = False
    return not bool(_seen_by(seen, sequence, queries, others.nonzero()[:, 0]).any())


def _seen_by(
    seen: Observed, sequence: int, queries: Tensor | slice, keys: Tensor | slice
) -> Tensor:
    """Which of these keys these queries see by the call's own mask; may broadcast."""
    if seen.mask is None:
        return torch.ones((1, 1, 1), dtype=torch.bool, device=seen.query.device)
    mask = seen.mask if isinstance(seen.mask, Mask) else Dense(seen.mask)
    return of_sequence(mask.crop(seen.shape, queries, keys, seen.query.device), sequence)


def _mask_of(seen: Observed, sequence: int, queries: Tensor, keys: Tensor) -> Mask | None:
    """The mask over some queries and keys; one that is a structure already stays one."""
    if seen.mask is None:
        return None
    if isinstance(seen.mask, Tensor):
        return _table(Dense(seen.mask), seen, sequence, queries, keys)
    parts = seen.mask.parts if isinstance(seen.mask, Combined) else (seen.mask,)
    kept = [_part(part, seen, sequence, queries, keys) for part in parts]
    left = [part for part in kept if part is not None]
    if any(isinstance(part, Dense) for part in left):
        shape = (seen.shape[1], len(queries), len(keys))
        return Dense(Combined(tuple(left)).crop(shape, device=seen.query.device))
    return Combined(tuple(left)) if len(left) > 1 else left[0] if left else None


def _part(part: Mask, seen: Observed, sequence: int, queries: Tensor, keys: Tensor) -> Mask | None:
    """One part of a mask over some queries and keys; None for padding that hides none of them."""
    N, M = seen.shape[2:]
    if len(queries) == N and len(keys) == M:
        if isinstance(part, Causal | Window):
            return part
        if isinstance(part, KeyRanges):  # copied, so that nobody can change it later
            return KeyRanges(part.first.clone(), part.end.clone())
    elif isinstance(part, Causal | Window) and stand_together(queries) and stand_together(keys):
        offset = M - N if part.offset is None else part.offset
        return replace(part, offset=offset + int(queries[0]) - int(keys[0]))
    if isinstance(part, Padding) and bool(_padding(part, sequence)[keys].all()):
        return None
    return _table(part, seen, sequence, queries, keys)


def _padding(part: Padding, sequence: int) -> Tensor:
    """Which keys of a sequence are no padding, (M,)."""
    rows = part.keep.reshape(-1, part.keep.shape[-1])
    return rows[sequence if len(rows) > 1 else 0]


def _table(mask: Mask, seen: Observed, sequence: int, queries: Tensor, keys: Tensor) -> Dense:
    """The mask over some queries and keys as a table, which may be a view of the call's own.

    What `_tokens` makes of it at once is none (`recognise`).
    """
    whole = tuple(mask.table.shape[-2:]) == seen.shape[-2:] if isinstance(mask, Dense) else False
    if whole and isinstance(mask, Dense):
        table = of_sequence(mask.table, sequence).to(seen.query.device)
        return Dense(take(take(table, queries).mT, keys).mT)
    return Dense(of_sequence(mask.crop(seen.shape, queries, keys, seen.query.device), sequence))
