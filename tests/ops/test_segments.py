"""Shares of segments, against sums over the full map in NumPy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import allowed_pairs, random_inputs, rounding

from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Dense
from heedful.ops.segments import SegmentShares
from heedful.ops.statistics import gather


@st.composite
def segments(draw, length):
    """Draw segments of a sequence: runs, every other position, any, none, all."""
    positions = np.arange(length)
    members = []
    for _ in range(draw(st.integers(1, 4))):
        a, b = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
        kinds = {
            "run": (positions >= a) & (positions < b),
            "every other": positions % 2 == a % 2,
            "any": np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length))),
            "all": positions >= 0,
        }
        members.append(kinds[draw(st.sampled_from(list(kinds)))])
    return np.stack(members)


def by_definition(inputs, map_, nonempty, queries, keys):
    """Compute each number with a loop over heads, segments and rows."""
    H, A, B = len(map_), len(queries), len(keys)
    allowed = allowed_pairs(inputs)
    share, chance = np.full((H, A, B), np.nan), np.full((H, A, B), np.nan)
    learned, counts = np.full((H, A), np.nan), np.zeros((H, A), int)
    for h, a in np.ndindex(H, A):
        rows = [n for n in range(map_.shape[1]) if queries[a, n] and nonempty[h, n]]
        counts[h, a] = len(rows)
        if not rows:
            continue
        learned[h, a] = np.mean([1 - map_[h, n].sum() for n in rows])
        for b in range(B):
            share[h, a, b] = np.mean([map_[h, n, keys[b]].sum() for n in rows])
            even = [allowed[h, n, keys[b]].sum() / allowed[h, n].sum() for n in rows]
            totals = [map_[h, n].sum() for n in rows]
            chance[h, a, b] = np.mean(np.array(even) * totals)
    return share, chance, learned, counts


@settings(max_examples=40)
@given(case=random_inputs(), data=st.data(), entries=st.integers(1, 200), rows=st.integers(1, 9))
def test_shares_equal_their_definition(case, data, entries, rows):
    """With padding, windows, groups, tables for each head, learned sinks, fully masked rows."""
    inputs, (map_, nonempty) = case
    queries, keys = (data.draw(segments(length)) for length in inputs.shape[1:])
    statistic = SegmentShares(torch.from_numpy(queries), torch.from_numpy(keys))
    [result] = gather(inputs, statistic, entries=entries, queries=rows)
    expected = by_definition(inputs, map_, nonempty, queries, keys)
    for name, value, target in zip(result._fields, result, expected, strict=True):
        np.testing.assert_allclose(value, target, atol=2 * rounding(inputs), err_msg=name)


def test_the_chance_of_a_head_follows_its_mask():
    table = torch.ones(2, 3, 6, dtype=torch.bool)
    table[1, :, :3] = False
    inputs = AttentionInputs(torch.zeros(2, 3, 1), torch.zeros(2, 6, 1), 1.0, Dense(table))
    halves = torch.arange(6) // 3 == torch.tensor([[0], [1]])
    [result] = gather(inputs, SegmentShares(torch.ones(1, 3, dtype=torch.bool), halves), entries=1)
    assert result.chance[:, 0].tolist() == [[0.5, 0.5], [0.0, 1.0]]
