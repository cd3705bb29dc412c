"""Fully masked cells of a heat map, which are drawn differently from cells of weight 0."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.ops.heatmap import Cells, pool_axis
from heedful.ops.indexing import ALL, intersection
from heedful.ops.inputs import AttentionInputs
from heedful.ops.score_blocks import Allowed, allowed_to

ROWS = 512  # number of queries in a run, for which the mask is built at once


def masked_cells(
    inputs: AttentionInputs, cell: tuple[int, int], queries: slice = ALL, keys: slice = ALL
) -> Tensor:
    """Return which cells of a region contain only masked pairs, boolean (H or 1, rows, columns).

    For each run of queries, the mask is built only for keys at which these queries can differ.

    Args:
        inputs: query, key, mask, … of the map.
        cell: queries and keys per cell, as in `heatmap.pooled`; the last cells may have fewer.
        queries, keys: the region, as slices without a step; default all.

    >>> from heedful.ops.masks import Causal
    >>> words = torch.zeros(1, 4, 2)
    >>> masked_cells(AttentionInputs(words, words, 1.0, Causal()), (2, 1)).int()
    tensor([[[0, 0, 1, 1],
             [0, 0, 0, 0]]], dtype=torch.int32)
    """
    _, N, M = inputs.shape
    rows, columns = Cells(range(N)[queries], cell[0]), Cells(range(M)[keys], cell[1])
    shape = len(rows.lengths), len(columns.lengths)
    visible = torch.zeros(1, *shape, dtype=torch.bool, device="cpu")
    step = max(1, ROWS // rows.size)
    for first in range(0, shape[0], step):
        cell_rows = range(first, min(first + step, shape[0]))
        block = _visible(inputs, rows.members(cell_rows), rows.size, columns)
        if len(block) > len(visible):
            visible = visible.expand(len(block), *shape).clone()
        visible[:, cell_rows.start : cell_rows.stop] = block
    return ~visible


def _visible(inputs: AttentionInputs, run: range, size: int, columns: Cells) -> Tensor:
    """Return which cells of a run of queries are not fully masked, (h or 1, rows, cells)."""
    span = columns.within if inputs.mask is None else inputs.mask.span(run, inputs.shape)
    allowed = allowed_to(inputs, run, intersection(span, columns.within))
    tables = [pool_axis(table.cpu(), size, 1, torch.any) for _, table in allowed.parts]
    heads = max((len(table) for table in tables), default=1)
    visible = torch.zeros(
        heads, -(-len(run) // size), len(columns.lengths), dtype=torch.bool, device="cpu"
    )
    for keys in _common_keys(allowed):
        cells = columns.overlapping(keys)
        visible[..., cells.start : cells.stop] = True
    for (key_slice, _), table in zip(allowed.parts, tables, strict=True):
        keys = allowed.keys[key_slice]
        cells = columns.overlapping(keys)
        pad = keys.start - columns.within.start - cells.start * columns.size
        padded = torch.nn.functional.pad(table, (pad, 0))  # now the first cell is complete
        visible[..., cells.start : cells.stop] |= pool_axis(padded, columns.size, 2, torch.any)
    return visible


def _common_keys(allowed: Allowed) -> list[range]:
    """Return the keys that every query may attend to: the keys outside all tables."""
    ends = [0, *(end for part, _ in allowed.parts for end in (part.start, part.stop))]
    ends.append(len(allowed.keys))
    between = (allowed.keys[ends[i] : ends[i + 1]] for i in range(0, len(ends), 2))
    return [keys for keys in between if len(keys)]
