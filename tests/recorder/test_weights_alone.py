"""Recordings made of weights alone: rows that sum to less than one are preserved."""

import math

import pytest
import torch
from torch import nn

import heedful
from heedful.ops import statistics
from heedful.ops.map_region import weights
from heedful.recording import from_attentions


def below_one():
    """Maps (2, 3, 5, 7) whose rows sum to less than one, except one to zero and one to one."""
    generator = torch.Generator().manual_seed(4)
    maps = torch.rand(2, 3, 5, 7, generator=generator).softmax(-1)
    share = torch.rand(2, 3, 5, 1, generator=generator)
    share[0, 1, 2], share[1, 0, 3] = 0.0, 1.0
    return maps * share * (torch.rand(2, 3, 5, 7, generator=generator) < 0.8)


def as_it_came(call, map_):
    """Check every statistic against its definition in float64 on the rows."""
    exact = map_.double()
    torch.testing.assert_close(call.weights(), map_, atol=1e-6, rtol=0)
    lone = exact.sum(-1) > 0

    def equal(results, expected):
        torch.testing.assert_close(results.double(), expected, atol=1e-5, rtol=0, equal_nan=True)

    def rows(values):
        return values.masked_fill(~lone, math.nan)

    equal(call.entropy(), rows(-torch.special.xlogy(exact, exact).sum(-1)))
    equal(call.received(), exact.sum(1))
    equal(call.learned_sink(), rows(1 - exact.sum(-1)))
    equal(call.largest().weights, rows(exact.amax(-1)))
    assert call.kind == "cross"  # five queries and seven keys, without positions
    assert call.distance().isnan().all()
    for head in range(3):
        equal(call.entropy(head), rows(-torch.special.xlogy(exact, exact).sum(-1))[head])
        equal(call.heatmap(16, head=head), exact[head])
    equal(call.weights(1, [4, 2, 2], slice(1, 6)), exact[1][[4, 2, 2]][:, 1:6])
    equal(call.weights(queries=-1, keys=[6, 0]), exact[:, -1:, [6, 0]])


def test_rows_that_sum_to_less_than_one_are_preserved_in_a_file(tmp_path):
    maps = below_one()
    recording = from_attentions([maps])
    again = heedful.load(recording.save(tmp_path / "r"))
    for each in (recording, again):
        for sequence, map_ in zip(each.sequences, maps, strict=True):
            as_it_came(sequence[0], map_)


class Given(nn.Module):
    """Attention by hand whose weights are fixed maps, whatever the input."""

    def __init__(self, maps):
        super().__init__()
        self.scores = maps.log()

    def forward(self, query, value):
        return self.scores.nan_to_num(neginf=-1e4).softmax(-1) @ value


@pytest.mark.parametrize("budget", [None, 0])
def test_weights_without_a_product_equal_those_of_the_model(budget):
    maps = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(4)).softmax(-1)
    maps[0, 1, 2, 3:] = 0
    maps /= maps.sum(-1, keepdim=True)
    with heedful.record(model := Given(maps), budget=budget) as recording:
        model(torch.randn(2, 3, 5, 4), torch.randn(2, 1, 7, 4))
    for [call], map_ in zip(recording.sequences, maps, strict=True):
        as_it_came(call, map_)
        assert call.door == "softmax and a product (weights alone)"
        assert (call.proof, call.layout) == ("proved", "guessed")
        assert "not a product of queries and keys" in call.why


@pytest.mark.parametrize("entries", [1, 20, 1 << 20])
def test_sinks_of_each_query_do_not_depend_on_the_blocks(entries, monkeypatch):
    """With one row at a time, and with blocks of one or several heads."""
    maps = below_one()
    causes = from_attentions([maps]).sequences[1][0].causes
    assert causes.sinks.shape == (3, 5)
    for queries in (1, 2, 5):
        results = statistics.gather(
            causes,
            statistics.LearnedSink(),
            statistics.Received(),
            entries=entries,
            queries=queries,
        )
        exact = maps[1].double()
        expected = (1 - exact.sum(-1)).masked_fill(exact.sum(-1) == 0, math.nan), exact.sum(1)
        for result, other in zip(results, expected, strict=True):
            torch.testing.assert_close(result.double(), other, atol=1e-5, rtol=0, equal_nan=True)
    monkeypatch.setattr("heedful.ops.inputs.ENTRIES", entries)
    for heads in (slice(None), slice(1, 2), slice(1, 3)):
        part = weights(causes, heads, [4, 0, 3], [2, 6])
        expected = maps[1][heads][:, [4, 0, 3]][:, :, [2, 6]]
        torch.testing.assert_close(part, expected, atol=1e-6, rtol=0)
