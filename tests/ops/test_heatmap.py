"""Regions of a map pooled to pictures, against NumPy on the full map."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import log_sum_exps, random_inputs

from heedful.errors import ArgumentError
from heedful.ops import heatmap as heatmap_module
from heedful.ops.heatmap import heatmap
from heedful.ops.inputs import AttentionInputs
from heedful.ops.map_region import by_rows
from heedful.ops.masks import Causal


def pooled_by_definition(map_, size, reduce):
    _, N, M = map_.shape
    height, width = (max(1, math.ceil(length / size)) for length in (N, M))
    cells = np.zeros((len(map_), math.ceil(N / height), math.ceil(M / width)))
    for i, j in itertools.product(*map(range, cells.shape[1:])):
        cell = map_[:, i * height : (i + 1) * height, j * width : (j + 1) * width]
        cells[:, i, j] = cell.mean((1, 2)) if reduce == "mean" else cell.max((1, 2))
    return cells


@settings(max_examples=60)
@given(
    case=random_inputs(),
    size=st.integers(1, 15),
    reduce=st.sampled_from(["mean", "max"]),
    ends=st.tuples(*[st.integers(-3, 13)] * 4),
    entries=st.integers(1, 60),
)
def test_heatmaps_pool_a_region_of_the_map(case, size, reduce, ends, entries):
    inputs, (map_, _) = case
    region = slice(*ends[:2]), slice(*ends[2:])
    sums = torch.from_numpy(log_sum_exps(inputs))[:, region[0]]
    with pytest.MonkeyPatch.context() as patch:  # blocks of a few cells, as for a long text
        patch.setattr(heatmap_module, "block_entries", lambda _: entries)
        pooled = heatmap(inputs, sums, size, reduce, *region)
    assert max(pooled.shape[1:]) <= size
    expected = pooled_by_definition(map_[:, *region], size, reduce)
    np.testing.assert_allclose(pooled, expected, atol=4e-6)


def test_a_region_is_never_stored_at_full_size(monkeypatch):
    sizes, fill = [], heatmap_module.fill_scores

    def counting_fill(scores, *arguments):
        sizes.append(scores.numel())
        fill(scores, *arguments)

    monkeypatch.setattr(heatmap_module, "fill_scores", counting_fill)
    monkeypatch.setattr(heatmap_module, "block_entries", lambda _: 5000)
    words = torch.randn(2, 700, 4)
    inputs = AttentionInputs(words, words, 1.0, Causal())
    _, sums = by_rows(inputs, torch.arange(700), torch.arange(700))
    reported = []
    picture = heatmap(inputs, sums[:, 300:], 10, queries=slice(300, None), progress=reported.append)
    assert max(sizes) <= 5000
    assert sum(sizes) < 2 * 400 * 700 * 0.85  # keys that are masked for a whole block are left out
    assert reported == sorted(reported)
    assert reported[-1] == 1.0
    full, _ = by_rows(inputs, torch.arange(300, 700), torch.arange(700))
    np.testing.assert_allclose(picture, pooled_by_definition(full.numpy(), 10, "mean"), atol=1e-6)


def test_wrong_pooling_raises_one_line():
    words, sums = torch.randn(1, 3, 2), torch.zeros(1, 3)
    inputs = AttentionInputs(words, words, 1.0)
    with pytest.raises(ArgumentError, match="'mean' or 'max'"):
        heatmap(inputs, sums, reduce="median")
    with pytest.raises(ArgumentError, match="at least 1 cell"):
        heatmap(inputs, sums, size=0)
    with pytest.raises(ArgumentError, match="without a step"):
        heatmap(inputs, sums, queries=slice(0, 9, 2))
