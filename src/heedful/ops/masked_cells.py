"""Which cells of a picture the mask hides whole: they have no weight, unlike one of 0."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.ops.heatmap import Cells
from heedful.ops.indexing import ALL, meeting
from heedful.ops.inputs import AttentionInputs
from heedful.ops.score_blocks import Allowed, allowed_to

ROWS = 512  # queries whose mask is looked at in one go


def hidden_cells(
    of: AttentionInputs, cell: tuple[int, int], queries: slice = ALL, keys: slice = ALL
) -> Tensor:
    """Which cells hold nothing but pairs that the mask hides: boolean (H or 1, rows, columns).

    The mask is made only for keys that some queries of a run may see and others not.

    Args:
        of: see `AttentionInputs`.
        cell: how many queries and keys a cell has, as in `pooled`; the last ones may have fewer.
        queries, keys: the region, slices without a step; default all.

    >>> from heedful.ops.masks import Causal
    >>> words = torch.zeros(1, 4, 2)
    >>> hidden_cells(AttentionInputs(words, words, 1.0, Causal()), (2, 1)).int()
    tensor([[[0, 0, 1, 1],
             [0, 0, 0, 0]]], dtype=torch.int32)
    """
    _, N, M = of.shape
    rows, columns = Cells(range(N)[queries], cell[0]), Cells(range(M)[keys], cell[1])
    shape = len(rows.lengths), len(columns.lengths)
    seen = torch.zeros(1, *shape, dtype=torch.bool, device="cpu")
    step = max(1, ROWS // rows.size)
    for first in range(0, shape[0], step):
        at = range(first, min(first + step, shape[0]))
        block = _seen(of, rows.of(at), rows.size, columns)
        if len(block) > len(seen):
            seen = seen.expand(len(block), *shape).clone()
        seen[:, at.start : at.stop] = block
    return ~seen


def _seen(of: AttentionInputs, run: range, size: int, columns: Cells) -> Tensor:
    """The cells of some queries that have a pair which may attend, (h or 1, rows, columns)."""
    span = columns.within if of.mask is None else of.mask.span(run, of.shape)
    allowed = allowed_to(of, run, meeting(span, columns.within))
    tables = [_any(table.cpu(), size, 1) for _, table in allowed.parts]
    heads = max((len(table) for table in tables), default=1)
    found = torch.zeros(
        heads, -(-len(run) // size), len(columns.lengths), dtype=torch.bool, device="cpu"
    )
    for keys in _certain(allowed):
        cells = columns.around(keys)
        found[..., cells.start : cells.stop] = True
    for (where, _), table in zip(allowed.parts, tables, strict=True):
        keys = allowed.keys[where]
        cells = columns.around(keys)
        ahead = keys.start - columns.within.start - cells.start * columns.size
        whole = torch.nn.functional.pad(table, (ahead, 0))  # so that it begins with a cell
        found[..., cells.start : cells.stop] |= _any(whole, columns.size, 2)
    return found


def _certain(allowed: Allowed) -> list[range]:
    """The keys that every query may see: what lies between the tables."""
    ends = [0, *(end for where, _ in allowed.parts for end in (where.start, where.stop))]
    ends.append(len(allowed.keys))
    between = (allowed.keys[ends[i] : ends[i + 1]] for i in range(0, len(ends), 2))
    return [keys for keys in between if len(keys)]


def _any(block: Tensor, size: int, dim: int) -> Tensor:
    """Whether any of `size` neighbours along an axis is true."""
    if size == 1:
        return block
    left = -block.shape[dim] % size
    pad = (0, left) if dim == 2 else (0, 0, 0, left)
    whole = torch.nn.functional.pad(block, pad)
    return whole.unflatten(dim, (-1, size)).any(dim=dim + 1)
