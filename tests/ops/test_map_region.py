"""Parts of a map, from full rows and from their log-sum-exp, against the full map in NumPy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import log_sum_exps, random_inputs, rounding

from heedful.ops import map_region
from heedful.ops.inputs import AttentionInputs
from heedful.ops.map_region import by_rows, weights
from heedful.ops.masks import Causal


@st.composite
def parts(draw):
    """Draw attention inputs, some heads, queries and keys in any order, and their weights."""
    inputs, (map_, _) = draw(random_inputs())
    H, N, M = inputs.shape
    queries = draw(st.lists(st.integers(-N, N - 1), min_size=1, max_size=5))
    keys = draw(st.lists(st.integers(-M, M - 1), min_size=1, max_size=5))
    heads = slice(draw(st.integers(0, H - 1)), H)
    return inputs, heads, queries, keys, map_[heads][:, queries][:, :, keys]


@settings(max_examples=30)
@given(parts())
def test_any_part_of_the_map_is_exact(case):
    inputs, heads, queries, keys, expected = case
    part = weights(inputs, heads, queries, keys)
    np.testing.assert_allclose(part, expected, atol=rounding(inputs))


@settings(max_examples=60)
@given(parts())
def test_cells_from_the_log_sum_exp_are_exact(case):
    inputs, heads, queries, keys, expected = case
    sums = torch.from_numpy(log_sum_exps(inputs))[heads][:, queries]
    cells = weights(inputs, heads, queries, keys, sums)
    np.testing.assert_allclose(cells, expected, atol=rounding(inputs))


@settings(max_examples=30)
@given(random_inputs())
def test_full_rows_and_their_log_sum_exp(case):
    inputs, (map_, _) = case
    every = torch.arange(inputs.shape[1]), torch.arange(inputs.shape[2])
    full, sums = by_rows(inputs.of_heads(slice(None)).upcast(), *every)
    np.testing.assert_allclose(full, map_, atol=rounding(inputs))
    np.testing.assert_allclose(sums, log_sum_exps(inputs), atol=4e-6, rtol=1e-6)


def test_a_part_computes_no_other_cell(monkeypatch):
    """Keys outside the part are not read."""
    query, key = torch.randn(2, 30, 4), torch.randn(2, 30, 4)
    inputs = AttentionInputs(query, key, 1.0, Causal())
    full, sums = by_rows(inputs, torch.arange(30), torch.arange(30))
    key = key.clone()
    key[:, :10] = key[:, 20:] = torch.nan
    inputs, rows = inputs._replace(key=key), [3, 25]
    part = weights(inputs, queries=rows, keys=slice(10, 20), sums=sums[:, rows])
    torch.testing.assert_close(part, full[:, [3, 25], 10:20], atol=1e-6, rtol=0)
    monkeypatch.setattr(map_region, "whole_rows", None)  # full rows would call it
    weights(inputs, queries=[1], keys=[0], sums=sums[:, [1]])
