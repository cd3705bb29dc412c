"""Exact sums of floats in any order, against Python's fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.ops.exact_sums import Total

BELOW = float(np.nextafter(np.float32(2**31), np.float32(0)))
FLOATS = st.floats(-BELOW, BELOW, width=32) | st.sampled_from(
    [math.nan, 0.1, 1e-45, -1e-45, 1.1754944e-38, 1 / 3, BELOW, -BELOW, 1e-12]
)


def by_fractions(values):
    numbers = [Fraction(value) for value in values if not math.isnan(value)]
    return float(sum(numbers) / len(numbers)) if numbers else math.nan


def same(total, other):
    return total.mean().equal(other.mean()) and total.counts.equal(other.counts)


@settings(max_examples=100)
@given(values=st.lists(FLOATS, max_size=25), data=st.data())
def test_any_split_in_any_order_gives_the_same_mean(values, data):
    values = [float(np.float32(value)) for value in values]
    full = Total.of(torch.tensor(values))
    np.testing.assert_equal(float(full.mean()), by_fractions(values))
    shuffled = data.draw(st.permutations(values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    parts = [
        Total.of(torch.tensor(shuffled[a:b]))
        for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)
    ]
    for order in (parts, parts[::-1]):
        total = order[0]
        for part in order[1:]:
            total = total.plus(part)
        np.testing.assert_equal(float(total.mean()), float(full.mean()))
        assert total.counts == full.counts


def test_heads_are_summed_separately():
    values = torch.randn(3, 5, 7)
    values[1, 2] = torch.nan
    values[0, 0, 3:] = torch.nan
    total = Total.of(values)
    assert total.counts[1, 2] == 0
    assert total.counts[0, 0] == 3
    np.testing.assert_allclose(total.mean(), values.double().nanmean(-1), rtol=1e-14)


def test_each_double_is_truncated_at_the_last_digit():
    values = torch.tensor([0.1, 2.0**-170, 1 / 3], dtype=torch.float64)
    split = Total.of(values[:1]).plus(Total.of(values[1:]))
    assert same(split, Total.of(values))
    assert float(split.mean()) == by_fractions([0.1, 1 / 3, 0.0])


def test_a_billion_sums_do_not_overflow():
    total = Total.of(torch.full((1, 9), 1 - 2.0**-24))
    for _ in range(30):
        total = total.plus(total)
    assert int(total.counts) == 9 << 30
    assert float(total.mean()) == 1 - 2.0**-24


@pytest.mark.parametrize("value", [math.inf, -math.inf, 2.0**31, -1e30])
def test_too_large_numbers_are_refused(value):
    with pytest.raises(ArgumentError, match="to add up; expected less than 2³¹"):
        Total.of(torch.tensor([0.5, value]))
