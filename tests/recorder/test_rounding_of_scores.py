"""What rounding of scores moves, beside a simulation in float64 that moves each score at random."""

import math

import pytest
import torch

from heedful.ops.causes import Causes
from heedful.ops.cells import weights
from heedful.ops.evenly import evenly
from heedful.ops.masks import Causal, Dense
from heedful.recording import certificate, evidence
from heedful.recording.rounding_of_scores import (
    CHANCE,
    LOOKED_AT,
    Rounding,
    deviation_of,
    farthest,
    moved_outputs,
    moved_rows,
    moved_scores,
    moved_weights,
)
from heedful.recorder.owners.padding import Layout

G, H, N, M, D, R = 2, 4, 5, 7, 8, 3
DRAWS = 1500
ROWS = torch.arange(N)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_deviation_of_scores_is_that_of_so_many_roundings(kind, steps):
    """Each step rounds another number from 1 to 2."""
    exact = 1 + torch.rand(steps, 100_000, dtype=torch.float64)
    off = (exact.to(kind).double() - exact).sum(dim=0)
    assert float(off.std()) == pytest.approx(deviation_of((kind,) * steps), rel=0.02)


def causes(**parts):
    made = Causes(
        torch.randn(H, N, D, dtype=torch.float64), torch.randn(G, M, D, dtype=torch.float64), 0.7
    )
    return made._replace(**parts).of_heads(slice(None))


PARTS = {
    "alone": dict,
    "a bias": lambda: {"bias": 20 * torch.randn(H, N, M, dtype=torch.float64)},
    "a cap": lambda: {"softcap": 2.0},
    "a mask": lambda: {"mask": Causal()},
    "rows that see nothing": lambda: {"mask": Dense(ROWS[:, None] + torch.arange(M) < 7)},
    "a sink": lambda: {"sinks": torch.randn(H, dtype=torch.float64)},
}


@pytest.mark.parametrize("way", PARTS)
def test_scores_of_an_interval_between_powers_of_two_are_as_coarse_as_its_begin(way):
    of = causes(**PARTS[way]())
    product = 0.7 * of.query @ of.key.mT
    if of.softcap:
        product = of.softcap * torch.tanh(product / of.softcap)
    size = product.abs()
    if of.bias is not None:
        size = torch.maximum(size, (product + of.bias).abs())
    expected = 0.01 * 2.0 ** size.log2().floor()
    torch.testing.assert_close(moved_scores(of, ROWS, Rounding(0.01)), expected)


@pytest.mark.parametrize("heads", [1, H])
def test_scores_are_as_coarse_as_what_stood_beside_them(heads):
    of, rows = causes(), torch.tensor([3, 1])
    added = 50 * torch.rand(heads, N, 1)
    size = torch.maximum((0.7 * of.query @ of.key.mT).abs(), added)[:, rows]
    expected = 0.01 * 2.0 ** size.log2().floor()
    torch.testing.assert_close(moved_scores(of, rows, Rounding(0.01, added)), expected)
    layout = Layout(torch.tensor([1, 4]), torch.arange(M), None)
    assert evidence._of_queries(added, layout).equal(added[:, [1, 4]])
    assert evidence._of_queries(added[:, :1], layout).equal(added[:, :1])


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("way", PARTS)
def test_weights_and_outputs_move_as_far_as_scores_moved_at_random_move_them(way, offset):
    of = causes(**PARTS[way]())
    value = torch.randn(G, M, R, dtype=torch.float64) + offset
    moved = moved_scores(of, ROWS, Rounding(1e-6))
    map_ = weights(of)
    others = []
    bias = 0.0 if of.bias is None else of.bias
    for _ in range(DRAWS):
        others.append(
            weights(of._replace(bias=bias + moved * torch.randn(H, N, M).double())) - map_
        )
    off = torch.stack(others)
    worst = CHANCE * off.square().mean(dim=0).sqrt().amax(dim=-1)
    if of.sinks is not None:  # whose share is a weight too
        shares = CHANCE * off.sum(dim=-1).square().mean(dim=0).sqrt()
        worst = torch.maximum(worst, shares)
    found, far = moved_rows(of, ROWS, Rounding(1e-6))
    torch.testing.assert_close(found, moved)
    torch.testing.assert_close(far, worst, rtol=0.1, atol=1e-9)
    output = off @ value.repeat_interleave(H // G, dim=0)
    expected = CHANCE * output.square().mean(dim=0).sqrt()
    torch.testing.assert_close(
        moved_outputs(map_, moved, value), expected, rtol=0.1, atol=1e-9 * (1 + offset)
    )


@pytest.mark.parametrize("size", [1e-20, 1e37])
def test_values_of_any_size_are_measured_in_their_own_units(size):
    of = causes()
    map_, moved = weights(of).float(), moved_scores(of, ROWS, Rounding(0.1)).float()
    value = torch.randn(G, M, R)
    expected = moved_outputs(map_, moved, value)
    torch.testing.assert_close(moved_outputs(map_, moved, size * value) / size, expected)


def test_a_score_of_zero_and_a_row_of_one_key_move_little():
    of = Causes(torch.zeros(1, 1, D), torch.randn(1, M, D), 1.0)
    assert float(moved_scores(of, torch.arange(1), Rounding(0.01)).max()) <= 0.01
    alone = moved_weights(torch.full((1, 1, 1), 5.0), torch.full((1, 1, 1), 8.0))
    assert float(alone) == 0


@pytest.mark.parametrize("highest", [0.0, 1e4])
def test_keys_that_are_nearer_than_their_scores_are_off_may_change_places(highest):
    logits = torch.tensor([[[8.0, 0.0, -1e9]]]) + highest
    assert float(moved_weights(logits, torch.full((1, 1, 3), 4.0))) > 0.9
    assert float(moved_weights(logits, torch.full((1, 1, 3), 0.1))) < 0.001
    apart = torch.tensor([[[120.0, 0.0]]]) + highest  # whose second weight is 0 in float32
    assert float(moved_weights(apart, torch.full((1, 1, 2), 60.0))) > 0.9
    assert float(moved_weights(apart, torch.full((1, 1, 2), 4.0))) < 0.001


def test_one_key_beside_a_sink():
    """Its value does not differ from others, and its weight is moved all the same."""
    of = causes(sinks=torch.zeros(H, dtype=torch.float64))
    of = of._replace(key=of.key[:, :1])
    map_, moved = weights(of), moved_scores(of, ROWS, Rounding(0.01))
    value = torch.full((H, 1, R), 2.0, dtype=torch.float64)
    expected = CHANCE * 2 * map_ * (1 - map_) * moved
    torch.testing.assert_close(moved_outputs(map_, moved, value), expected.expand(H, N, R))


def test_an_output_of_weights_that_tell_nothing_may_be_any_of_the_values():
    """To the first order a key of almost no weight moves almost nothing, however far it is off."""
    map_ = torch.tensor([[[1 - 3e-4, 3e-4]]])
    value = torch.tensor([[[5.0], [-5.0]]])

    def owed(deviation):
        moved = torch.full((1, 1, 2), deviation)
        far = moved_weights(map_.log(), moved)
        return float(certificate._owed_to_scores(map_, moved, far, value))

    assert owed(4.0) > 10
    assert owed(0.1) < 0.01


BIASES = {
    "none": lambda bias: bias,
    "all keys of one row": lambda bias: bias.index_fill(1, torch.tensor([3]), -1500.0),
    "all keys up to itself": lambda bias: (
        bias - 1500 * (torch.arange(M) < 4) * (ROWS == 3)[:, None]
    ),
    "some keys of a row": lambda bias: bias - 3000 * (torch.arange(M) > 1),
    "keys that hide": lambda bias: bias - 1e9 * (torch.arange(M) > 1),
}


@pytest.mark.parametrize("way", BIASES)
@pytest.mark.parametrize("mask", [None, Causal(0)])
def test_no_row_that_is_looked_at_is_passed_over_by_its_bias(way, mask):
    """Nearly no query or key, so that only a bias may move a weight."""
    of = causes(bias=BIASES[way](torch.zeros(H, N, M, dtype=torch.float64)), mask=mask)
    of = of._replace(query=of.query * 1e-3)
    exact = float(moved_rows(of, ROWS, Rounding(0.01))[1].max())
    assert farthest(of, Rounding(0.01), 0.05) in ([exact] if exact > 0.05 else [exact, 0.0])
    is_all = way == "all keys of one row" or (way == "all keys up to itself" and mask is not None)
    assert (exact > 0.05) == is_all


def test_the_order_of_sums_counts_where_nothing_else_has_rounded():
    key = 300 * torch.randn(1, 1, 64) + 1e-4 * torch.randn(1, 40, 64)  # scores are near each other
    of = Causes(300 * torch.randn(1, 40, 64), key, 1.0)
    far = moved_rows(of, torch.arange(40), Rounding(0.0))[1].max()
    assert float(far) > 1e-3
    assert farthest(of, Rounding(0.0), 1e-3) == float(far)


def rows_between(count):
    """Rows of 600 that are not among those that are evenly spread."""
    return sorted({*range(600)}.difference(evenly(600, LOOKED_AT // 2).tolist()))[:count]


@pytest.mark.parametrize("is_added", [True, False])
@pytest.mark.parametrize("head", [0, -1])
@pytest.mark.parametrize("heads", [4, 40])
def test_the_rows_of_the_largest_scores_are_looked_at_wherever_they_are(heads, head, is_added):
    """Of the largest by themselves, or by what stood beside them in all heads."""
    query, added = torch.randn(heads, 600, D, dtype=torch.float64), None
    rows = rows_between(30 if is_added else 3)
    if is_added:
        added = torch.zeros(1, 600, 1, dtype=torch.float64)
        added[0, rows] = 4096.0
        lengths = query.norm(dim=-1, keepdim=True)  # those of these rows are neither long nor short
        query[:, rows] *= lengths.median(dim=1, keepdim=True).values / lengths[:, rows]
    else:
        query[head, rows] *= 50
    key = torch.randn(heads // 2, M, D, dtype=torch.float64)
    of, rounding = Causes(query, key, 0.7).of_heads(slice(None)), Rounding(1e-5, added)
    farthest_of_all = moved_rows(of, torch.arange(600), rounding)[1].max()
    assert farthest(of, rounding, 0.0) == farthest_of_all


def test_a_row_of_small_scores_is_looked_at_beside_something_large():
    """The others' scores are as large, and too far apart to be moved."""
    query, row = torch.full((1, 600, 1), 1e8, dtype=torch.float64), rows_between(400)[-1]
    query[0, row], query[0, :300] = 1.0, 0.0  # of which no score is more than the others
    of = Causes(query, torch.arange(7.0, dtype=torch.float64)[None, :, None], 1.0)
    rounding = Rounding(1e-7, torch.full((1, 1, 1), 1e8, dtype=torch.float64))
    farthest_of_all = moved_rows(of, torch.arange(600), rounding)[1].max()
    assert farthest(of, rounding, 1e-3) == farthest_of_all > 0.1


@pytest.mark.parametrize("none", [math.nan, math.inf, 1e200])
def test_a_head_of_larger_scores_and_a_key_that_is_none_leave_the_others_rows_looked_at(none):
    """The weights of the first head, of which each row has one key alone, do not move."""
    query, key = torch.randn(H, 600, D, dtype=torch.float64), causes().key.clone()
    row = rows_between(1)[0]
    query[0], query[:, 0] = torch.linspace(1e4, 2e4, 600)[:, None] * key[0, 0], 0.0
    query[-1, row], key[-1, 2:] = 50 * query[-1, row], key[-1, 2]  # of which no score is larger
    key[:, 1] = none
    of = causes(query=query, key=key, scale=4.0, mask=Dense((torch.arange(M) != 1).expand(600, M)))
    farthest_of_all = moved_rows(of, torch.arange(600), Rounding(1e-3))[1].max()
    assert farthest(of, Rounding(1e-3), 1e-3) == farthest_of_all > 0


@pytest.mark.parametrize("scale", [0.5, -2.0])
def test_no_row_that_is_looked_at_is_passed_over_by_its_product(scale):
    """Of two keys whose scores are the same a rounding moves weights the most."""
    query = torch.ones(1, 600, 1, dtype=torch.float64)
    query[0, 1] = 256.0
    of = Causes(query, torch.ones(1, 2, 1, dtype=torch.float64), scale)
    farthest_of_all = float(moved_rows(of, torch.tensor([1]), Rounding(1e-6))[1])
    assert farthest(of, Rounding(1e-6), 0.99 * farthest_of_all) == farthest_of_all > 0
