"""Which cells of a picture the mask hides whole: they have no weight, unlike one of 0."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.ops.causes import Causes
from heedful.ops.heatmap import Cells
from heedful.ops.score_blocks import allowed_to

ROWS = 512  # queries whose mask is looked at in one go


def hidden_cells(of: Causes, cell: tuple[int, int]) -> Tensor:
    """Which cells hold nothing but pairs that the mask hides: boolean (H or 1, rows, columns).

    Args:
        of: see `Causes`.
        cell: how many queries and keys a cell has; the last ones may have fewer.

    >>> from heedful.ops.masks import Causal
    >>> words = torch.zeros(1, 4, 2)
    >>> hidden_cells(Causes(words, words, 1.0, Causal()), (2, 1)).int()
    tensor([[[0, 0, 1, 1],
             [0, 0, 0, 0]]], dtype=torch.int32)
    """
    _, N, M = of.shape
    rows, columns = Cells(range(N), cell[0]), Cells(range(M), cell[1])
    shape = len(rows.lengths), len(columns.lengths)
    if of.mask is None:
        return torch.zeros(1, *shape, dtype=torch.bool)
    seen = torch.zeros(1, *shape, dtype=torch.bool)
    step = max(1, ROWS // rows.size) * rows.size
    for start in range(0, N, step):
        run = range(start, min(start + step, N))
        block = _seen(of, run)
        if len(block) > len(seen):
            seen = seen.expand(len(block), *shape).clone()
        cells = _any(_any(block, rows.size, 1), columns.size, 2)
        at = start // rows.size
        seen[:, at : at + cells.shape[1]] |= cells
    return ~seen


def _seen(of: Causes, run: range) -> Tensor:
    """The pairs of some queries that may attend, (h or 1, n, M)."""
    allowed = allowed_to(of, run)
    everywhere = torch.ones(len(run), len(allowed.keys), dtype=torch.bool)
    found = allowed.among(everywhere.to(of.query.device)).cpu()
    block = torch.zeros(len(found), len(run), of.shape[2], dtype=torch.bool)
    block[:, :, allowed.keys.start : allowed.keys.stop] = found
    return block


def _any(block: Tensor, size: int, dim: int) -> Tensor:
    """Whether any of `size` neighbours along an axis is true."""
    if size == 1:
        return block
    left = -block.shape[dim] % size
    pad = (0, left) if dim == 2 else (0, 0, 0, left)
    whole = torch.nn.functional.pad(block, pad)
    return whole.unflatten(dim, (-1, size)).any(dim=dim + 1)
