"""Replays of tapes reproduce the weights of the model bit for bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.recorder.doors.tape import NO_MAP, UNUSED, Tape
from heedful.recorder.doors.tape_cells import BATCH, KEYS, QUERIES, cells_of, replayed_weights
from heedful.recorder.doors.tape_steps import name_of

B, H, N, M, D = 2, 3, 5, 7, 4
HIDDEN = torch.rand(N, M) < 0.4
HIDDEN[:, 0] = False
BIAS = torch.randn(H, N, M)
SHUFFLED = torch.randperm(M)


def watched(run, *inputs, parameters=()):
    """Run a function inside a tape; return the calls, the reasons of misses, and its result."""
    calls, missed = [], []
    tape = Tape(
        parameters, lambda: True, lambda: "attn", calls.append, lambda *of: missed.append(of), {}
    )
    with tape:
        result = run(*inputs)
    tape.end()
    return calls, missed, result


def factors(dtype=torch.float32):
    sizes = ((B, H, N, D), (B, H, M, D), (B, H, M, D))
    return [(2 * torch.randn(size)).to(dtype) for size in sizes]


def written_out(scores):
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def with_sink(scores):
    sink = torch.full((*scores.shape[:-1], 1), 0.5, dtype=scores.dtype)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


def in_place(scores):
    scores.mul_(0.5).masked_fill_(HIDDEN, -math.inf)
    scores[..., 1:] += 0.25
    return scores.softmax(-1)


def capped(scores):
    return (10 * torch.tanh(scores / 10) + BIAS.to(scores.dtype)).softmax(-1)


def rounded(scores):
    return scores.float().masked_fill(HIDDEN, -1e9).softmax(-1, torch.float32).to(scores.dtype)


def without_nan(scores):
    weights = scores.softmax(-1)
    return torch.where(weights.isnan(), 0.0, weights)


def of_three(scores):
    best = scores.topk(3, -1).values[..., -1:]
    return torch.where(scores < best, -math.inf, scores).softmax(-1)


SPELLINGS = {
    "softmax": lambda scores: (scores * D**-0.5).softmax(-1),
    "function": lambda scores: F.softmax(scores.masked_fill(HIDDEN, -1e4), dim=-1),
    "where": lambda scores: torch.where(HIDDEN, scores.new_tensor(-math.inf), scores).softmax(-1),
    "logarithms": lambda scores: scores.log_softmax(-1).exp(),
    **{way.__name__: way for way in (written_out, with_sink, in_place, capped, rounded)},
    **{way.__name__: way for way in (without_nan, of_three)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_replayed_weights_equal_those_of_the_model_bit_for_bit(mode, spelling, dtype):
    query, key, value = factors(dtype)

    def run(query, key, value):
        weights = SPELLINGS[spelling](query @ key.mT)
        return weights, weights @ value

    with mode():
        expected = run(query, key, value)
        [meeting], missed, (weights, output) = watched(run, query, key, value)
    assert torch.equal(output, expected[1])
    assert missed == []
    cells = cells_of(meeting)
    assert torch.equal(replayed_weights(meeting).reshape(weights.shape), weights)
    assert [cells.kinds.count(kind) for kind in (QUERIES, KEYS)] == [1, 1]
    assert torch.equal(cells.query[cells.queries].reshape(query.shape), query)
    assert torch.equal(cells.key[cells.keys].reshape(key.shape), key)


MOVED = {
    "flip": lambda scores: scores.flip(-1),
    "roll": lambda scores: scores.roll(2, -1),
    "gather": lambda scores: scores.gather(-1, SHUFFLED.expand(scores.shape)),
    "index_select": lambda scores: scores.index_select(-1, SHUFFLED),
}


@pytest.mark.parametrize("way", MOVED)
def test_keys_that_were_moved_keep_their_rows(way):
    query, key, value = factors()
    [meeting], _, _ = watched(lambda: MOVED[way](query @ key.mT).softmax(-1) @ value)
    cells = cells_of(meeting)
    scores = (cells.query[cells.queries] * cells.key[cells.keys]).sum(-1)
    weights = replayed_weights(meeting)
    torch.testing.assert_close(scores.softmax(-1).view(weights.shape), weights)


def test_keys_times_queries_are_transposed():
    query, key, value = factors()
    [meeting], missed, _ = watched(lambda: value.mT @ (key @ query.mT).softmax(-2))
    cells = cells_of(meeting)
    assert missed == []
    assert (cells.kinds, cells.is_transposed) == ([BATCH, BATCH, KEYS, QUERIES], True)
    assert torch.equal(cells.query, query.flatten(0, 2))
    assert torch.equal(cells.key, key.flatten(0, 2))


def test_a_product_with_a_parameter_begins_no_tape():
    layer, x = nn.Linear(D, M), torch.randn(B, N, D)
    [meeting], _, _ = watched(
        lambda: layer(x).softmax(-1) @ torch.randn(M, D), parameters=[*layer.parameters()]
    )
    assert name_of(meeting.softmax.function) == "_softmax"
    assert not meeting.has_product


def test_reasons_of_missed_calls():
    query, key, value = factors()
    for run, missed in (
        (lambda: (query @ key.mT) @ value, None),
        (lambda: (3 * (query @ key.mT).softmax(-1)) @ value, NO_MAP),
        (lambda: (query @ key.mT).softmax(-1), UNUSED),
        (lambda: query @ key.mT, None),
    ):
        calls, reasons, _ = watched(run)
        assert calls == []
        assert reasons == ([("attn", missed)] if missed else [])
