"""Any part of a map, by whole rows and by their log-sum-exp, against NumPy on the whole map."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import causes, log_sum_exps, rounding

from heedful.ops import map_region as of_cells
from heedful.ops.inputs import AttentionInputs
from heedful.ops.map_region import by_rows, weights
from heedful.ops.masks import Causal


@st.composite
def parts(draw):
    """AttentionInputs, their map, and some heads, queries and keys of it, in any order."""
    of, (map_, _) = draw(causes())
    H, N, M = of.shape
    queries = draw(st.lists(st.integers(-N, N - 1), min_size=1, max_size=5))
    keys = draw(st.lists(st.integers(-M, M - 1), min_size=1, max_size=5))
    heads = slice(draw(st.integers(0, H - 1)), H)
    return of, heads, queries, keys, map_[heads][:, queries][:, :, keys]


@settings(max_examples=30)
@given(parts())
def test_any_part_of_the_map_is_exact(made):
    of, heads, queries, keys, expected = made
    np.testing.assert_allclose(weights(of, heads, queries, keys), expected, atol=rounding(of))


@settings(max_examples=60)
@given(parts())
def test_any_cells_are_exact_by_the_sums_of_their_rows(made):
    of, heads, queries, keys, expected = made
    sums = torch.from_numpy(log_sum_exps(of))[heads][:, queries]
    found = weights(of, heads, queries, keys, sums)
    np.testing.assert_allclose(found, expected, atol=rounding(of))


@settings(max_examples=30)
@given(causes())
def test_whole_rows_come_with_their_sums(made):
    of, (map_, _) = made
    every = torch.arange(of.shape[1]), torch.arange(of.shape[2])
    whole, sums = by_rows(of.of_heads(slice(None)).in_precision(), *every)
    np.testing.assert_allclose(whole, map_, atol=rounding(of))
    np.testing.assert_allclose(sums, log_sum_exps(of), atol=4e-6, rtol=1e-6)


def test_a_part_computes_no_other_cell(monkeypatch):
    """Keys outside the part may be anything: they are not looked at."""
    query, key = torch.randn(2, 30, 4), torch.randn(2, 30, 4)
    of = AttentionInputs(query, key, 1.0, Causal())
    whole, sums = by_rows(of, torch.arange(30), torch.arange(30))
    key = key.clone()
    key[:, :10] = key[:, 20:] = torch.nan
    shown = weights(
        of._replace(key=key), queries=[3, 25], keys=slice(10, 20), sums=sums[:, [3, 25]]
    )
    torch.testing.assert_close(shown, whole[:, [3, 25], 10:20], atol=1e-6, rtol=0)
    monkeypatch.setattr(of_cells, "whole_rows", None)  # it would have to be called for them
    weights(of, queries=[1], keys=[0], sums=sums[:, [1]])
