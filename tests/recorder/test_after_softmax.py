"""What models do to weights between their softmax and their values, in every argument's place."""

import math

import pytest
import torch
from looked import WIDTH, B, Heads, M, N, looked_at, of_heads, weighed
from torch.nn import functional as F

ONES, ZEROS = torch.ones(N, M), torch.zeros(N, M)
LAST = (torch.arange(N) == N - 1)[:, None]  # the row of the last query

UNCHANGED = {
    "where, last": lambda w: torch.where(w.isnan(), 0, w),
    "where, last, beside a table": lambda w: torch.where(w.isnan(), torch.zeros_like(w), w),
    "where, second": lambda w: torch.where(~w.isnan(), w, 0),
    "where, its method": lambda w: w.where(~w.isnan(), 0.0),
    "where, both": lambda w: torch.where(w > 0.5, w, w),
    "masked_fill": lambda w: w.masked_fill(w.isnan(), 0),
    "nan_to_num": lambda w: w.nan_to_num(0.0),
    "nan_to_num, keyword": lambda w: torch.nan_to_num(w, nan=0.0),
    "mul": lambda w: w * ONES,
    "mul, last": lambda w: ONES * w,
    "mul by a number": lambda w: 1.0 * w,
    "mul in place": lambda w: w.mul_(ONES),
    "div": lambda w: w / ONES,
    "add": lambda w: w + ZEROS,
    "add, last": lambda w: ZEROS + w,
    "add a number": lambda w: 0.0 + w,
    "sub": lambda w: w - ZEROS,
    "dropout of nothing": lambda w: F.dropout(w, 0.0, training=True),
    "dropout at rest": lambda w: F.dropout(w, 0.5, training=False),
    "clamp": lambda w: w.clamp(0, 1),
    "clamp, one bound": lambda w: w.clamp(min=1e-12),
    "clamp by tensors": lambda w: torch.clamp(w, ZEROS, ONES),
    "maximum": lambda w: torch.maximum(w, ZEROS),
    "maximum, last": lambda w: torch.maximum(ZEROS, w),
    "minimum, last": lambda w: torch.minimum(ONES, w),
    "addcmul": lambda w: torch.addcmul(w, ONES, ZEROS),
    "addcmul, second": lambda w: torch.addcmul(ZEROS, w, ONES),
    "addcmul, last": lambda w: torch.addcmul(ZEROS, ONES, w),
    "addcdiv, second": lambda w: torch.addcdiv(ZEROS, w, ONES),
    "lerp": lambda w: torch.lerp(w, ZEROS, 0.0),
    "lerp, second": lambda w: torch.lerp(ZEROS.expand_as(w), w, 1.0),
    "lerp, last": lambda w: torch.lerp(ZEROS, ONES, w),
    "relu": F.relu,
    "threshold": lambda w: F.threshold(w, 0.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("way", UNCHANGED)
def test_what_changes_no_weight_leaves_the_map_proved(way):
    of_heads(lambda query, key: UNCHANGED[way]((query @ key.mT).softmax(-1)) @ key, N, M)


EMPTIED = {
    "where, last": lambda w: torch.where(LAST, 0.0, w),
    "where, second": lambda w: torch.where(~LAST, w, 0.0),
    "masked_fill": lambda w: w.masked_fill(LAST, 0.0),
    "mul": lambda w: w * ~LAST,
    "mul, last": lambda w: ~LAST * w,
    "addcmul, last": lambda w: torch.addcmul(ZEROS, (~LAST).float(), w),
    "lerp, last": lambda w: torch.lerp(ZEROS, (~LAST).float(), w),
}


@pytest.mark.parametrize("way", EMPTIED)
def test_a_row_that_is_set_to_zero_is_shown_so(way):
    of_heads(
        lambda query, key: EMPTIED[way]((query @ key.mT).softmax(-1)) @ key,
        N,
        M,
        maps=lambda query, key: weighed(query, key) * ~LAST,
    )


REPAIRED = {
    "where, last": lambda w: torch.where(w.isnan(), 0, w),
    "where, second": lambda w: torch.where(~w.isnan(), w, 0),
    "masked_fill": lambda w: w.masked_fill(w.isnan(), 0),
    "nan_to_num": lambda w: w.nan_to_num(0.0),
}


@pytest.mark.parametrize("way", REPAIRED)
def test_rows_of_which_a_mask_hides_all_keys(way):
    """Their softmax is NaN, which TransformerLens and others replace by 0."""
    hidden = LAST | (torch.arange(M) == 2)

    def attend(query, key):
        scores = (query @ key.mT).masked_fill(hidden, -math.inf)
        return REPAIRED[way](scores.softmax(-1)) @ key

    def maps(query, key):
        raised = (query.double() @ key.double().mT).exp() * ~hidden
        whole = raised / raised.sum(-1, keepdim=True)
        return whole.masked_fill(LAST, 0.0).to(query.dtype).detach()

    of_heads(attend, N, M, maps=maps)


IN_PLACE = {
    "masked_fill_": lambda w: w.masked_fill_(w.isnan(), 0),
    "nan_to_num_": lambda w: w.nan_to_num_(0.0),
    "clamp_": lambda w: w.clamp_(0, 1),
    "add_": lambda w: w.add_(ZEROS),
}


@pytest.mark.parametrize("way", IN_PLACE)
def test_what_is_done_in_place_is_shown_as_it_came_out(way):
    model = Heads(lambda query, key: IN_PLACE[way]((query @ key.mT).softmax(-1)) @ key)
    x, y = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)
    with torch.no_grad():
        recording = looked_at(model, x, y)
    expected = weighed(*model.heads(x, y))
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)


COMBINED = {
    "add": lambda one, other: (one + other) / 2,
    "sub": lambda one, other: one - 0.5 * other,
    "where": lambda one, other: torch.where(LAST, one, other),
    "lerp": lambda one, other: torch.lerp(one, other, 0.3),
    "addcmul, last": lambda one, other: torch.addcmul(one, ONES, other),
}


@pytest.mark.parametrize("way", COMBINED)
def test_two_softmaxes_are_no_map_of_one(way):
    def attend(query, key):
        one, other = (query @ key.mT).softmax(-1), (query @ key.mT / 3).softmax(-1)
        return COMBINED[way](one, other) @ key

    looked_at(
        Heads(attend),
        torch.randn(B, N, WIDTH),
        torch.randn(B, M, WIDTH),
        missed={"Heads": "another softmax is combined with it"},
    )
