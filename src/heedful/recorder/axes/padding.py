"""The real (non-padding) queries and keys of each sequence of a call, and the mask over them.

Tokens that the model's inputs mark as padding are left out only if the call's own mask hides them:
a layer may ignore the padding mask.
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
from heedful.recorder.observed_call import Observed, TokenMasks
from heedful.recording.mask_groups import tables_of
from heedful.recording.unpadded import RealTokens, are_contiguous, of_sequence, row_of


def tokens_of(
    call: Observed, real: TokenMasks | None = None, is_full: bool = False
) -> list[RealTokens]:
    """Return the real tokens of each sequence of a call, whose mask `Masks.split` made boolean.

    real: the real tokens according to the model's inputs; default all.
    is_full: False if the keys may fill only the first slots of a cache.
    """
    real, may_have_room = real or TokenMasks(), not (call.cross or is_full)
    first = _first_alike(call, real)
    distinct = sorted({*first})
    has_keys_alone = real.keys is not None and real.queries is None and not call.cross
    start = _start(call, distinct) if has_keys_alone else None
    tokens = {b: _tokens(call, b, real, start, may_have_room) for b in distinct}
    return [tokens[b] for b in first]


def visible_keys(call: Observed) -> Tensor:
    """Return which keys of each sequence at least one query may attend to, (B, M)."""
    B, M = len(call.query), call.shape[3]
    crops = [_crop(call.mask, call, b, ALL, ALL).expand(-1, -1, M) for b in range(B)]
    return torch.stack([crop.flatten(0, 1).any(dim=0) for crop in crops])


def _first_alike(call: Observed, real: TokenMasks) -> list[int]:
    """Return for each sequence the index of the first one with the same masks."""
    B = len(call.query)
    tables = [real.keys, real.queries, *_tables_by_sequence(call.mask)]
    several = [table for table in tables if table is not None and len(table) > 1]
    if any(B % len(table) for table in several):
        return [*range(B)]
    several = [table for table in several if not torch.equal(table, table[:1].expand_as(table))]
    rows = [table.flatten(1).cpu().numpy() for table in several]
    firsts: dict[tuple[bytes, ...], int] = {}
    keys = (tuple(table[b // (B // len(table))].tobytes() for table in rows) for b in range(B))
    return [firsts.setdefault(key, b) for b, key in enumerate(keys)]


def _tables_by_sequence(mask: Mask | Tensor | None) -> list[Tensor]:
    """Return the tables (B, …) of a mask that have a row for each sequence."""
    if isinstance(mask, Combined):
        return [table for part in mask.parts for table in _tables_by_sequence(part)]
    tables = tables_of(mask) if isinstance(mask, Mask) else [mask] if mask is not None else []
    return [table for table in tables if table.ndim >= (2 if isinstance(mask, Padding) else 4)]


def _tokens(
    call: Observed, sequence: int, real: TokenMasks, start: int | None, may_have_room: bool
) -> RealTokens:
    _, H, N, M = call.shape
    queries, keys = torch.arange(N, device="cpu"), torch.arange(M, device="cpu")
    real_queries, real_keys = _real(call, sequence, real, start, queries, keys)
    # the call must hide padding from these: the real queries; for a guess, or if none is real, all
    must_hide = queries if real.is_guess or not len(real_queries) else real_queries
    if len(real_keys) == M or _hides_others(call, sequence, must_hide, real_keys):
        queries, keys = real_queries, real_keys
    mask = _mask_of(call, sequence, queries, keys)
    end = _end(mask, (H, len(queries), len(keys)), call.query.device)
    if may_have_room and len(queries) <= end < len(keys):
        keys = keys[:end]  # statistics assume that the last query is at the last key
        mask = _mask_of(call, sequence, queries, keys)
    return RealTokens(queries, keys, recognise(mask, (H, len(queries), len(keys))))


def _end(mask: Mask | None, shape: tuple[int, int, int], device: torch.device) -> int:
    """Return the end of the keys to which any query may attend; later cache slots are empty."""
    _, N, M = shape
    if mask is None or N >= M or not N:
        return M
    if not isinstance(mask, Dense):
        return mask.span(range(N), shape).stop
    visible = mask.crop(shape, device=device).flatten(0, -2).any(dim=0).nonzero()
    return int(visible.max()) + 1 if len(visible) else M


def _real(
    call: Observed, b: int, real: TokenMasks, start: int | None, queries: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Select the real queries and keys of sequence b; the first query is at the key `start`."""
    B, N = len(call.query), len(queries)
    if real.keys is not None:
        row = row_of(b, len(real.keys), B)
        keys = keys if row is None else real.keys[row].bool().nonzero()[:, 0].cpu()
    if real.queries is not None:
        row = row_of(b, len(real.queries), B)
        queries = queries if row is None else real.queries[row].bool().nonzero()[:, 0].cpu()
    elif start is not None:
        positions = keys - start
        positions = positions[(positions >= 0) & (positions < N)]
        queries = positions if len(positions) or not len(keys) else queries  # else `start` is wrong
    return queries, keys


def _start(call: Observed, sequences: list[int]) -> int:
    """Return the position of the first query among the keys. The last query is at the last key that
    it may attend to in at least one sequence; cache slots after this key are empty."""
    N, M = call.shape[2:]
    if N >= M or call.mask is None:
        return M - N
    last_rows = (_crop(call.mask, call, b, slice(N - 1, N), ALL) for b in sequences)
    visible = torch.stack([row.expand(-1, -1, M).flatten(0, 1).any(dim=0) for row in last_rows])
    ends = visible.any(dim=0).nonzero() + 1
    return max(0, int(ends.max()) - N) if len(ends) else M - N


def _hides_others(call: Observed, sequence: int, queries: Tensor, keys: Tensor) -> bool:
    """Whether the call's own mask hides all other keys from these queries."""
    others = torch.ones(call.shape[-1], dtype=torch.bool, device="cpu")
    others[keys] = False
    return not bool(_crop(call.mask, call, sequence, queries, others.nonzero()[:, 0]).any())


def _crop(
    mask: Mask | Tensor | None, call: Observed, sequence: int, queries: Index, keys: Index
) -> Tensor:
    """Return which keys each query may attend to, as a table that broadcasts to (H, n, m)."""
    device = call.query.device
    if mask is None:
        return torch.ones((1, 1, 1), dtype=torch.bool, device=device)
    mask = mask if isinstance(mask, Mask) else Dense(mask)
    return of_sequence(mask.crop(call.shape, queries, keys, device), sequence)


def _mask_of(call: Observed, sequence: int, queries: Tensor, keys: Tensor) -> Mask | None:
    """Return the mask over some queries and keys, as a table only if it has no simple structure."""
    mask = call.mask
    structures = []
    for part in mask.parts if isinstance(mask, Combined) else (mask,):
        is_padding = isinstance(part, Padding)  # without effect if all these keys are real
        if part is None or (is_padding and _crop(part, call, sequence, queries[:1], keys).all()):
            continue
        structure = _structure(part, call.shape, queries, keys)
        if structure is None:
            return Dense(_crop(mask, call, sequence, queries, keys))
        structures.append(structure)
    return functools.reduce(operator.and_, structures) if structures else None


def _structure(part: Any, shape: tuple[int, ...], queries: Tensor, keys: Tensor) -> Mask | None:
    """Return a causal mask, window or key range over some queries and keys; else None."""
    N, M = shape[2:]
    if len(queries) == N and len(keys) == M:
        return part if isinstance(part, Causal | Window | KeyRanges) else None
    if isinstance(part, Causal | Window) and are_contiguous(queries) and are_contiguous(keys):
        offset = M - N if part.offset is None else part.offset
        return replace(part, offset=offset + int(queries[0]) - int(keys[0]))
    return None
