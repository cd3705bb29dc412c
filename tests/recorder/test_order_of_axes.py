"""Tensors are put in order by their strides alone, as views split, permuted and joined are."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.recorder.following.alignment import Order, aligned
from heedful.recorder.following.strides import Axis, Part


@st.composite
def ordered(draw):
    """A tensor of some axes in any order, some sliced or repeated; and groups of these."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    wide = [size * draw(st.integers(1, 2)) for size in sizes]
    places = draw(st.permutations(range(len(sizes))))
    table = torch.randn(*[wide[place] for place in places], draw(st.integers(1, 3)))
    table = table[tuple(slice(0, wide[place], wide[place] // sizes[place]) for place in places)]
    table = table.expand(*[sizes[place] for place in places], table.shape[-1])
    cut = draw(st.integers(0, len(sizes)))
    groups = [draw(st.permutations(range(cut))), draw(st.permutations(range(cut, len(sizes))))]
    return sizes, places, table, groups


@given(ordered())
def test_a_tensor_in_order_is_the_same_numbers_permuted_and_joined(drawn):
    sizes, places, table, groups = drawn
    parts = [(Part(Axis(size), 1, size),) for size in sizes]
    axes = [*[parts[place] for place in places], None]
    order = Order([axes[:-1]])
    atoms = [[order.atoms(parts[one])[0] for one in group] for group in groups]
    found = aligned(table, axes, order, atoms)
    back = [places.index(one) for group in groups for one in group]
    expected = table.permute(*back, table.ndim - 1)
    joined = [math.prod(sizes[one] for one in group) for group in groups]
    assert torch.equal(found, expected.reshape(*joined, table.shape[-1]))


def test_of_a_group_that_is_there_in_part_the_rest_is_repeated():
    heads, tokens = ((Part(Axis(size), 1, size),) for size in (3, 5))
    order = Order([[heads, tokens]])
    one = torch.randn(5, 2)
    found = aligned(one, [tokens, None], order, [[*order.atoms(heads), *order.atoms(tokens)]])
    assert torch.equal(found, one.repeat(3, 1))


def test_what_has_one_axis_twice_is_no_tensor_of_a_call():
    tokens = (Part(Axis(5), 1, 5),)
    order = Order([[tokens]])
    with pytest.raises(TypeError, match="a diagonal"):
        aligned(torch.randn(5, 5, 2), [tokens, tokens, None], order, [order.atoms(tokens)])
