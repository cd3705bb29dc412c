"""Masks that hide keys by adding −10,000: where scores are larger than that, they hide nothing."""

import pytest
import torch
from looked import looked_at
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.recorder.doors import score_causes
from heedful.recorder.observed import Observed
from heedful.recorder.sequences.mask_structure import Masks

WIDTH, H, D, N = 12, 3, 4, 20
ROW = (torch.arange(N) == 1)[:, None]  # none of the eight that are compared
HALF = ROW & (torch.arange(N) < N // 2)


def by_hand(query, key, mask):
    return (query @ key.mT * D**-0.5 + mask).softmax(-1) @ key


def by_kernel(query, key, mask):
    return scaled_dot_product_attention(query, key, key, attn_mask=mask)


class Twice(nn.Module):
    """Two calls with one mask, the second of scores that are so many times as large."""

    def __init__(self, attend, times):
        super().__init__()
        self.attend, self.times = attend, times
        self.asks, self.says = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x):
        return (one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says))

    def forward(self, x, mask):
        query, key = self.heads(x)
        return self.attend(query, key, mask) + self.attend(self.times * query, key, mask)


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("way", [by_hand, by_kernel])
def test_a_mask_that_large_scores_reach_over_is_kept_as_numbers(way, is_inference):
    torch.manual_seed(2)
    with torch.inference_mode(is_inference):
        model, x, mask = Twice(way, 2e5).double(), torch.randn(1, N, WIDTH).double(), HALF * -1e4
        recording = looked_at(model, x, mask.double())
        query, key = model.heads(x)
    for call, times in zip(recording, (1, 2e5), strict=True):
        scores = times * query @ key.mT * D**-0.5 + mask
        assert call.proof == "proved"
        torch.testing.assert_close(call.weights(), scores.softmax(-1)[0], atol=1e-9, rtol=0)
    small, large = recording
    assert (small.causes.bias, large.causes.mask) == (None, None)
    assert large.weights()[:, 1, : N // 2].max() > 0.1  # of keys that the mask was to hide


def test_a_cap_keeps_scores_from_reaching_over_a_mask():
    def attend(query, key, mask):
        return (5 * (query @ key.mT / 5).tanh() + mask).softmax(-1) @ key

    recording = looked_at(Twice(attend, 1e4), torch.randn(1, N, WIDTH), HALF * -1e4)
    assert [call.proof for call in recording] == ["proved"] * 2
    assert [call.causes.bias for call in recording] == [None] * 2


def test_a_bias_may_reach_over_a_mask_and_a_mask_may_be_wider_than_the_keys():
    query, key = torch.randn(1, H, N, D), torch.randn(1, H, N, D)
    mask = torch.cat([HALF * -1e4, torch.zeros(N, 2)], dim=1).expand(1, H, N, N + 2)
    bias = torch.zeros(1, H, N, N)
    for high, is_hiding in ((5000.0, True), (20000.0, False)):
        bias[..., 1, 0] = high
        seen = Masks().split(Observed(query, key, None, None, 0.5, mask=mask, bias=bias))
        assert (seen.mask is not None) == is_hiding
        expected = bias if is_hiding else bias + mask[..., :N]
        assert torch.equal(seen.bias, expected)


@pytest.mark.parametrize("low", [-1e4, -1e9])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_a_kernel_with_a_row_that_large_numbers_hide(scale, row, low):
    """In float32, 32 is half of the last bit of 1e9: less is lost, and more is not."""
    hidden = ((torch.arange(N) == row)[:, None] * low).expand(N, N)

    def attend(query, key, mask):
        return scaled_dot_product_attention(query, key, key, attn_mask=mask, scale=scale)

    model = Twice(attend, 1)
    [call, _] = looked_at(model, x := torch.randn(1, N, WIDTH), hidden)
    query, key = model.heads(x)
    true = (scale * query @ key.mT + hidden).softmax(-1)[0]
    assert call.proof == "proved"
    torch.testing.assert_close(call.weights(), true, atol=1e-5, rtol=0)
    if (scale, low) == (1.0, -1e9):
        torch.testing.assert_close(true[:, row], torch.full((H, N), 1 / N))


@pytest.mark.parametrize("row", [0, 1])
def test_a_bias_beside_numbers_that_hide_a_row_keeps_all_its_digits(row):
    hidden = (torch.arange(N) == row)[:, None]
    bias = torch.randn(N, N).double()

    def attend(query, key, mask):
        return ((query @ key.mT).masked_fill(hidden, -1e9) + bias).softmax(-1) @ key

    model = Twice(attend, 1).double()
    x = torch.randn(1, N, WIDTH).double()
    recording = looked_at(model, x, None)
    query, key = model.heads(x)
    true = ((query @ key.mT).masked_fill(hidden, -1e9) + bias).softmax(-1)
    assert recording[0].proof == "proved"
    torch.testing.assert_close(recording[0].weights(), true[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, N - 1, N, N + 1])
@pytest.mark.parametrize("row", [0, 1, N - 1])
def test_every_row_is_looked_at_for_keys_that_have_weight_all_the_same(row, rows, monkeypatch):
    """A few at a time: with a mask like this one all would take N × M bytes more."""
    monkeypatch.setattr(score_causes, "BLOCK", rows * H * N)
    hidden = (torch.arange(N) == row)[:, None] & (torch.arange(N) < N // 2)

    def attend(query, key, mask):
        return (1e5 * (query @ key.mT - 30)).masked_fill(hidden, -1e4).softmax(-1) @ key

    [first, _] = looked_at(Twice(attend, 1), torch.randn(1, N, WIDTH), None)
    assert first.proof == "unproved"


@pytest.mark.parametrize("weight", [1e-4, 1e-9])
def test_a_small_weight_of_a_key_that_a_number_was_to_hide_is_a_weight(weight):
    """A row of which all scores are low, and that a number hides half of."""
    low = -1e4 - torch.tensor(weight).log()

    def attend(query, key, mask):
        scores = (query @ key.mT).mul(1e-3) + ROW * low / 2 + ROW * low / 2
        return scores.masked_fill(HALF, -1e4).softmax(-1) @ key

    [first, _] = looked_at(Twice(attend, 1), torch.randn(1, N, WIDTH), None)
    assert first.proof == "unproved"


def test_a_mask_of_no_axes_that_hides_all_by_minus_infinity():
    def attend(query, key, mask):
        scores = torch.where(torch.tensor(True), query @ key.mT, torch.tensor(-torch.inf))
        return scores.softmax(-1) @ key

    recording = looked_at(Twice(attend, 1), torch.randn(1, N, WIDTH), None)
    assert [call.proof for call in recording] == ["proved"] * 2


def test_what_hides_by_minus_infinity_needs_no_look_at_weights(monkeypatch):
    """Its keys have none whatever their scores are; a look would read N × M numbers."""
    looks = []
    hand = heedful.recorder.doors.softmax_matmul
    monkeypatch.setattr(hand, "_is_hidden_key_weighed", lambda *_: looks.append(1))

    def attend(query, key, mask):
        return (query @ key.mT).masked_fill(HALF, -torch.inf).softmax(-1) @ key

    assert len(looked_at(Twice(attend, 1), torch.randn(1, N, WIDTH), None)) == 2
    assert not looks
