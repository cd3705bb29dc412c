"""Axes of a map in the order in which models usually have them."""

import itertools

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.recorder.doors.cells import cells_of
from heedful.recorder.doors.tape import Tape
from heedful.recorder.owners.usual_order import HEADS, PARTS, TEXTS, usual_order

N, M, D = 5, 7, 4


def order_of(*beside, texts, widths=()):
    """The order of a map with these axes before queries and keys, and the map with its factors."""
    query, key = torch.randn(*beside, N, D), torch.randn(*beside, M, D)
    met = []
    with Tape((), lambda: True, met.append, lambda why: None, {}):
        _ = (query @ key.mT).softmax(-1) @ torch.randn(*beside, M, 3)
    cells = cells_of(met[0])
    return usual_order(cells, texts, widths), cells, query, key


@pytest.mark.parametrize(
    ("beside", "texts", "widths", "counts"),
    [
        ((), 1, (), (1, 1, 1)),
        ((3,), 1, (12,), (1, 1, 3)),
        ((6,), 1, (4,), (1, 6, 1)),
        ((2, 3), 2, (12,), (2, 1, 3)),
        ((2,), 2, (4,), (2, 1, 1)),
        ((6,), 2, (12,), (2, 1, 3)),
        ((6,), 2, (4,), (2, 3, 1)),
        ((8, 3), 2, (36,), (2, 4, 3)),
        ((2, 4, 3), 2, (12,), (2, 4, 3)),
    ],
)
def test_texts_parts_and_heads(beside, texts, widths, counts):
    order, cells, query, key = order_of(*beside, texts=texts, widths=widths)
    assert tuple(map(order.count, (TEXTS, PARTS, HEADS))) == counts
    each = (counts[0] * counts[1], counts[2])
    map_ = order.arranged(cells.weights())
    assert map_.shape == (*each, N, M)
    rows, columns = order.arranged(cells.queries), order.arranged(cells.keys)
    for b, h in itertools.product(*map(range, each)):
        scores = cells.query[rows[b, h, :, 0]] @ cells.key[columns[b, h, 0]].T
        torch.testing.assert_close(map_[b, h], scores.softmax(-1))
    expected = (query @ key.mT).softmax(-1).reshape(map_.shape)
    torch.testing.assert_close(map_, expected)


def test_queries_that_may_be_heads_times_queries_are_a_guess():
    query, key = torch.randn(2, 3 * M, D), torch.randn(2, M, D)
    met = []
    with Tape((), lambda: True, met.append, lambda why: None, {}):
        _ = (query @ key.mT).softmax(-1) @ torch.randn(2, M, 3)
    assert "3 heads of 7 queries" in usual_order(cells_of(met[0]), 2, ()).other
    assert order_of(2, texts=2)[0].other == ""


@pytest.mark.parametrize(
    ("beside", "texts", "widths"), [((3, 2), 2, (13,)), ((5,), 2, ()), ((3,), 1, (13,))]
)
def test_what_fits_no_rule_is_refused(beside, texts, widths):
    with pytest.raises(ArgumentError, match="axes="):
        order_of(*beside, texts=texts, widths=widths)
