"""Numbers that are compared eight bytes at a time, beside NumPy's comparison of all of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.recorder.following.same_numbers import are_same

KINDS = [torch.bool, torch.int8, torch.float16, torch.float32, torch.float64, torch.complex64]


def table(kind, rows, columns, first, step, is_turned):
    """A table that stands somewhere in a longer one, in rows or in columns."""
    room = torch.randint(1, 100, (rows + 1, first + step * columns)).to(kind)
    part = room[1:, first : first + columns]
    return part.mT.contiguous().mT if is_turned else part


@settings(max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 4),
    st.integers(1, 17),
    st.integers(0, 9),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_any_one_number_makes_them_others(kind, rows, columns, first, step, turned, is_nan, seed):
    torch.manual_seed(seed)
    one = table(kind, rows, columns, first, step, turned)
    place = seed % rows, seed % columns
    if is_nan and kind.is_floating_point:
        one[place] = torch.nan
    other = one.clone()
    assert are_same(one, other)
    other[place] = 0
    expected = np.array_equal(one.numpy(), other.numpy(), equal_nan=kind.is_floating_point)
    assert not expected
    assert not are_same(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_one_number_alone(kind):
    assert are_same(torch.ones((), dtype=kind), torch.ones((), dtype=kind))
    assert not are_same(torch.ones((), dtype=kind), torch.zeros((), dtype=kind))
    assert are_same(torch.ones(0, 3, dtype=kind), torch.ones(0, 3, dtype=kind))
