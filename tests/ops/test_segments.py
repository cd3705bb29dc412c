"""Shares of segments, against sums of the whole map in NumPy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import causes, choices, rounding

from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Dense
from heedful.ops.segments import SegmentShares
from heedful.ops.statistics import gather


@st.composite
def segments(draw, length):
    """Some segments of so many places: runs, every other place, any, nothing, all."""
    places = np.arange(length)
    found = []
    for _ in range(draw(st.integers(1, 4))):
        a, b = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
        kinds = {
            "run": (places >= a) & (places < b),
            "every other": places % 2 == a % 2,
            "any": np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length))),
            "all": places >= 0,
        }
        found.append(kinds[draw(st.sampled_from(list(kinds)))])
    return np.stack(found)


def by_definition(of, map_, seen, queries, keys):
    """Each number by its own loop over heads, segments and rows."""
    H, A, B = len(map_), len(queries), len(keys)
    allowed = choices(of)
    share, chance = np.full((H, A, B), np.nan), np.full((H, A, B), np.nan)
    learned, counts = np.full((H, A), np.nan), np.zeros((H, A), int)
    for h, a in np.ndindex(H, A):
        rows = [n for n in range(map_.shape[1]) if queries[a, n] and seen[h, n]]
        counts[h, a] = len(rows)
        if not rows:
            continue
        learned[h, a] = np.mean([1 - map_[h, n].sum() for n in rows])
        for b in range(B):
            share[h, a, b] = np.mean([map_[h, n, keys[b]].sum() for n in rows])
            even = [allowed[h, n, keys[b]].sum() / allowed[h, n].sum() for n in rows]
            left = [map_[h, n].sum() for n in rows]
            chance[h, a, b] = np.mean(np.array(even) * left)
    return share, chance, learned, counts


@settings(max_examples=40)
@given(made=causes(), data=st.data(), entries=st.integers(1, 200), rows=st.integers(1, 9))
def test_shares_equal_their_definition(made, data, entries, rows):
    """Padding, windows, groups, tables for each head, learned sinks, rows that see nothing."""
    of, (map_, seen) = made
    queries, keys = (data.draw(segments(length)) for length in of.shape[1:])
    statistic = SegmentShares(torch.from_numpy(queries), torch.from_numpy(keys))
    [found] = gather(of, statistic, entries=entries, queries=rows)
    expected = by_definition(of, map_, seen, queries, keys)
    for name, value, wanted in zip(found._fields, found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=2 * rounding(of), err_msg=name)


def test_heads_with_masks_of_their_own_have_chances_of_their_own():
    table = torch.ones(2, 3, 6, dtype=torch.bool)
    table[1, :, :3] = False
    of = AttentionInputs(torch.zeros(2, 3, 1), torch.zeros(2, 6, 1), 1.0, Dense(table))
    halves = torch.arange(6) // 3 == torch.tensor([[0], [1]])
    [found] = gather(of, SegmentShares(torch.ones(1, 3, dtype=torch.bool), halves), entries=1)
    assert found.chance[:, 0].tolist() == [[0.5, 0.5], [0.0, 1.0]]
