"""Operations between two products, run again: the model's own weights to the last bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.errors import RunError
from heedful.recorder.doors.cells import BATCH, KEYS, QUERIES, cells_of
from heedful.recorder.doors.tape import Tape

B, H, N, M, D = 2, 3, 5, 7, 4
HIDDEN = torch.rand(N, M) < 0.4
HIDDEN[:, 0] = False
BIAS = torch.randn(H, N, M)
SHUFFLED = torch.randperm(M)


def watched(run, *given, parameters=()):
    """What a tape tells of a function: the meetings, the reasons, and what the function gave."""
    met, missed = [], []
    tape = Tape(parameters, lambda: True, met.append, missed.append, {})
    with tape:
        made = run(*given)
    return met, missed, made


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


SPELLINGS = {
    "softmax": lambda scores: (scores * D**-0.5).softmax(-1),
    "function": lambda scores: F.softmax(scores.masked_fill(HIDDEN, -1e4), dim=-1),
    "where": lambda scores: torch.where(HIDDEN, scores.new_tensor(-math.inf), scores).softmax(-1),
    "logarithms": lambda scores: scores.log_softmax(-1).exp(),
    "written out": written_out,
    "a sink": with_sink,
    "in place": in_place,
    "a cap and a bias": capped,
    "float32 inside": rounded,
    "NaN taken out": lambda scores: torch.where(
        (weights := scores.softmax(-1)).isnan(), 0.0, weights
    ),
    "the best alone": lambda scores: torch.where(
        scores < scores.topk(3, -1).values[..., -1:], -math.inf, scores
    ).softmax(-1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_weights_run_again_are_the_models_own_bit_for_bit(mode, spelling, dtype):
    query, key, value = factors(dtype)

    def run(query, key, value):
        weights = SPELLINGS[spelling](query @ key.mT)
        return weights, weights @ value

    with mode():
        expected = run(query, key, value)
        met, missed, (weights, output) = watched(run, query, key, value)
    assert torch.equal(output, expected[1])
    assert missed == []
    [meeting] = met
    cells = cells_of(meeting)
    assert torch.equal(cells.weights().reshape(weights.shape), weights)
    assert [cells.kinds.count(kind) for kind in (QUERIES, KEYS)] == [1, 1]
    arranged = cells.query[cells.queries].squeeze(-2), cells.key[cells.keys].squeeze(-3)
    assert torch.equal(arranged[0].reshape(query.shape), query)
    assert torch.equal(arranged[1].reshape(key.shape), key)


@pytest.mark.parametrize("moves", ["flip", "index_select", "gather", "roll"])
def test_keys_that_were_moved_keep_their_rows(moves):
    query, key, value = factors()

    def moved(scores):
        if moves == "flip":
            return scores.flip(-1)
        if moves == "roll":
            return scores.roll(2, -1)
        if moves == "gather":
            return scores.gather(-1, SHUFFLED.expand(scores.shape))
        return scores.index_select(-1, SHUFFLED)

    [meeting], _, _ = watched(lambda: moved(query @ key.mT).softmax(-1) @ value)
    cells = cells_of(meeting)
    of_queries, of_keys = cells.query[cells.queries], cells.key[cells.keys]
    scores = (of_queries * of_keys).sum(-1).view(B * H, N, M)
    torch.testing.assert_close(scores.softmax(-1), cells.weights().view(B * H, N, M))


def test_axes_are_those_of_the_softmax():
    query, key, value = factors()
    run = lambda: (query @ key.mT).softmax(-1) @ value  # noqa: E731
    [meeting], _, _ = watched(run)
    cells = cells_of(meeting)
    assert (cells.kinds, cells.shape) == ([BATCH, BATCH, QUERIES, KEYS], (B, H, N, M))


def test_keys_times_queries_are_turned():
    query, key, value = factors()
    run = lambda: value.mT @ (key @ query.mT).softmax(-2)  # noqa: E731
    [meeting], missed, _ = watched(run)
    cells = cells_of(meeting)
    assert missed == []
    assert cells.kinds == [BATCH, BATCH, KEYS, QUERIES]
    assert cells.query.shape == (B * H * N, D)
    assert cells.key.shape == (B * H * M, D)


def test_dropout_is_left_out():
    query, key, value = factors()
    run = lambda: F.dropout((query @ key.mT).softmax(-1), 0.5) @ value  # noqa: E731
    [meeting], missed, _ = watched(run)
    assert missed == []
    assert meeting.weights.step.is_dropped
    expected = (query @ key.mT).softmax(-1)
    assert torch.equal(cells_of(meeting).weights(), expected)


def test_a_product_with_a_parameter_begins_no_tape():
    layer, x = nn.Linear(D, M), torch.randn(B, N, D)
    run = lambda: layer(x).softmax(-1) @ torch.randn(M, D)  # noqa: E731
    met, _, _ = watched(run, parameters=[*layer.parameters()])
    assert [meeting.softmax.name for meeting in met] == ["_softmax"]
    assert met[0].softmax.product is met[0].softmax


def test_what_no_softmax_made_is_no_call():
    query, key, value = factors()
    met, missed, _ = watched(lambda: (query @ key.mT) @ value)
    assert met == []
    assert missed == []
    met, missed, _ = watched(lambda: (3 * (query @ key.mT).softmax(-1)) @ value)
    assert met == []
    assert "sum to one" in missed[0]


def test_a_mask_that_was_changed_later_raises():
    query, key, value = factors()
    mask = torch.zeros(N, M)
    [meeting], _, _ = watched(lambda: (query @ key.mT + mask).softmax(-1) @ value)
    mask[0, 0] = 1.0
    with pytest.raises(RunError, match="changed in place"):
        cells_of(meeting).weights()
