"""Fully masked cells of a heat map, against loops over the full mask."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.ops import masked_cells as module
from heedful.ops.inputs import AttentionInputs
from heedful.ops.masked_cells import masked_cells
from heedful.ops.masks import Causal, Dense, KeyRanges, Packed, Padding, Window


@st.composite
def masked(draw):
    """Draw attention inputs with a mask, and the mask as a table (H, N, M)."""
    H, N, M = draw(st.integers(1, 3)), draw(st.integers(1, 17)), draw(st.integers(1, 19))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    table = torch.rand(H, N, M, generator=generator) < 0.3
    first = torch.randint(0, M + 1, (N,), generator=generator)
    parts = {
        "causal": Causal(draw(st.sampled_from([None, -2, 0, 3]))),
        "window": Window(draw(st.integers(1, 6))),
        "padding": Padding(torch.rand(M, generator=generator) < 0.6),
        "dense": Dense(table),
        "shared": Dense(table[0]),
        "packed": Packed.of(table),
        "ranges": KeyRanges(first, first + torch.randint(0, 6, (N,), generator=generator)),
    }
    chosen = draw(st.lists(st.sampled_from(list(parts)), max_size=3, unique=True))
    mask = None
    for name in chosen:
        mask = parts[name] if mask is None else mask & parts[name]
    allowed = torch.ones(H, N, M).bool() if mask is None else mask.crop((H, N, M))
    inputs = AttentionInputs(torch.zeros(H, N, 2), torch.zeros(H, M, 2), 1.0, mask)
    return inputs, allowed.expand(H, N, M)


def by_loops(allowed, cell):
    H, n, m = allowed.shape
    cells = np.zeros((H, math.ceil(n / cell[0]), math.ceil(m / cell[1])), bool)
    for h, i, j in np.ndindex(cells.shape):
        rows, keys = slice(i * cell[0], (i + 1) * cell[0]), slice(j * cell[1], (j + 1) * cell[1])
        cells[h, i, j] = not allowed[h, rows, keys].any()
    return cells


@settings(max_examples=100)
@given(
    case=masked(),
    cell=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    ends=st.tuples(*[st.integers(0, 19)] * 4),
    rows=st.integers(1, 9),
)
def test_fully_masked_cells_equal_loops(case, cell, ends, rows):
    inputs, allowed = case
    queries, keys = slice(*sorted(ends[:2])), slice(*sorted(ends[2:]))
    with pytest.MonkeyPatch.context() as patch:  # runs of a few queries, as for a long text
        patch.setattr(module, "ROWS", rows)
        cells = masked_cells(inputs, cell, queries, keys)
    expected = by_loops(allowed[:, queries, keys].numpy(), cell)
    np.testing.assert_array_equal(cells.expand(expected.shape), expected)


def test_the_mask_is_built_only_where_queries_differ(monkeypatch):
    sizes, crop = [], Causal.crop

    def counting_crop(self, shape, queries, keys, device=None):
        table = crop(self, shape, queries, keys, device)
        sizes.append(table.numel())
        return table

    monkeypatch.setattr(Causal, "crop", counting_crop)
    words = torch.zeros(1, 4096, 2)
    masked_cells(AttentionInputs(words, words, 1.0, Causal()), (64, 64), slice(1024, 2048))
    assert sum(sizes) < 1024 * 1024
