"""Pieces of one storage that are put together: the axis that they make, by where they stand."""

import itertools

import pytest
import torch

from heedful.recorder.following.pieces import UNKNOWN, together
from heedful.recorder.following.strides import Axis, Part, Storage, View, place, written

T, N = 4, 4
TEXTS, TOKENS = Axis(T, (0, 0)), Axis(N, (0, 1))
X = torch.arange(T * N).view(T, N)
STORAGE = Storage(
    lambda: written([(Part(TEXTS, 1, T, False),), (Part(TOKENS, 1, N, False),)], *place(X))
)


def read(pieces, dim=None):
    return together(pieces, View(STORAGE, *place(pieces[0])), dim)


IN_ORDER = {  # the pieces, the axis along which they are put, and the axis that they make
    "rows": ([X[0], X[1], X[2], X[3]], None, (Part(TEXTS, 1, T, False),)),
    "every second row": ([X[0], X[2]], None, (Part(TEXTS, 2, 2, False),)),
    "columns": (X.unbind(1), None, (Part(TOKENS, 1, N, False),)),
    "halves": ([X[:2], X[2:]], 0, (Part(TEXTS, 2, 2, False),)),
}


@pytest.mark.parametrize("way", IN_ORDER)
def test_pieces_at_equal_distances_are_counted(way):
    pieces, dim, axis = IN_ORDER[way]
    assert read(pieces, dim).outer == axis


@pytest.mark.parametrize("ends", [(0, 1, 4), (0, 3, 4), (0, 1, 3, 4), (0, 2, 3)])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_pieces_one_after_another_are_their_axis(ends, dim):
    pieces = [X.narrow(dim, a, b - a) for a, b in itertools.pairwise(ends)]
    axis = (TEXTS, TOKENS)[dim]
    assert read(pieces, dim).whole == (Part(axis, 1, ends[-1], False),)


OTHERWISE = {
    "rows": ([X[2], X[0], X[1]], None, TEXTS),
    "a row twice": ([X[0], X[0], X[1]], None, TEXTS),
    "rows from the last": (X.unbind()[::-1], None, TEXTS),
    "columns": (X.unbind(1)[::-1], None, TOKENS),
    "halves": ([X[2:], X[:2]], 0, TEXTS),
    "unequal": ([X[:, 3:], X[:, :3]], 1, TOKENS),
    "with a gap": ([X[:1], X[2:]], 0, TEXTS),
    "that overlap": ([X[:2], X[1:4]], 0, TEXTS),
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_pieces_in_another_order_are_of_one_axis(way):
    pieces, dim, axis = OTHERWISE[way]
    found = read(pieces, dim)
    assert (found.outer, found.whole, found.picked.axis) == (None, None, axis)
    [part] = found.elsewhere([()], 7, "cat")
    assert (part.axis.given, part.axis.moved, part.size) == (axis.given, "cat", 7)


def test_rows_in_another_order_keep_what_is_in_them():
    pieces = [X[2], X[0], X[1]]
    inner = (Part(TOKENS, 1, N, False),)
    outer, *left = read(pieces, 0).elsewhere([inner] * 3, 3 * N, "cat")
    assert (outer.axis.given, outer.axis.moved, outer.size) == ((0, 0), "cat", 3)
    assert tuple(left) == inner
    [mixed] = read([X[2], X[0, :3]], 0).elsewhere([inner, inner[:0]], N + 3, "cat")
    assert (mixed.axis.given, mixed.axis.moved, mixed.size) == (None, "cat", N + 3)


UNLIKE = {
    "of two axes": [X[0, :2], X[1, 1:3], X[3, :2]],
    "along a diagonal": [X[0, :2], X[1, 1:3]],
    "turned": [X[:2, :2], X.T[:2, 1:3]],
    "the same": [X[1], X[1]],
    "one alone": [X[1]],
    "others": [X[0].clone(), X[1]],
    "of other sizes": [X[0, :2], X[1, :3]],
}


@pytest.mark.parametrize("way", UNLIKE)
def test_nothing_is_said_of_pieces_that_stand_otherwise(way):
    assert read(UNLIKE[way]) == UNKNOWN


def test_an_axis_of_no_input_is_not_picked():
    heads = Storage(lambda: written([(Part(Axis(T), 1, T, True),), ()], *place(X)))
    pieces = [X[2], X[0]]
    assert together(pieces, View(heads, *place(pieces[0])), None) == UNKNOWN
