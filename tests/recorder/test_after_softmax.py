"""Operations on weights between the softmax and the product with values."""

import math

import pytest
import torch
from shown_maps import WIDTH, B, Heads, M, N, looked_at, of_heads, shows, weighed
from torch.nn import functional as F

from heedful.recorder.doors.tape import NO_MAP

ONES, ZEROS = torch.ones(N, M), torch.zeros(N, M)
LAST = (torch.arange(N) == N - 1)[:, None]  # the row of the last query

UNCHANGED = {
    "where, last": lambda w: torch.where(w.isnan(), torch.zeros_like(w), w),
    "mul": lambda w: w * ONES,
    "mul in place": lambda w: w.mul_(ONES),
    "add a number": lambda w: 0.0 + w,
    "dropout at rest": lambda w: F.dropout(w, 0.5, training=False),
    "maximum, last": lambda w: torch.maximum(ZEROS, w),
    "addcmul, last": lambda w: torch.addcmul(ZEROS, ONES, w),
    "lerp, second": lambda w: torch.lerp(ZEROS.expand_as(w), w, 1.0),
}
EMPTIED = {
    "where": lambda w: torch.where(LAST, 0.0, w),
    "masked_fill": lambda w: w.masked_fill(LAST, 0.0),
    "mul": lambda w: ~LAST * w,
}
REPAIRED = {  # TransformerLens and others replace the NaN of fully masked rows by 0
    "where, last": lambda w: torch.where(w.isnan(), 0, w),
    "nan_to_num": lambda w: torch.nan_to_num(w, nan=0.0),
}


@pytest.mark.parametrize("way", UNCHANGED)
def test_operations_that_keep_the_weights_keep_the_map(way):
    of_heads(lambda query, key: UNCHANGED[way]((query @ key.mT).softmax(-1)) @ key, N, M)


@pytest.mark.parametrize("way", EMPTIED)
def test_a_row_that_is_set_to_zero_is_recorded_as_zero(way):
    of_heads(
        lambda query, key: EMPTIED[way]((query @ key.mT).softmax(-1)) @ key,
        N,
        M,
        maps=lambda query, key: weighed(query, key) * ~LAST,
    )


@pytest.mark.parametrize("way", REPAIRED)
def test_fully_masked_rows(way):
    hidden = LAST | (torch.arange(M) == 2)

    def attend(query, key):
        scores = (query @ key.mT).masked_fill(hidden, -math.inf)
        return REPAIRED[way](scores.softmax(-1)) @ key

    def maps(query, key):
        raised = (query.double() @ key.double().mT).exp() * ~hidden
        return (raised / raised.sum(-1, keepdim=True)).nan_to_num(0.0).to(query.dtype)

    of_heads(attend, N, M, maps=maps)


GIVEN = torch.randn(B, N, WIDTH), torch.randn(B, M, WIDTH)


COMBINED = {
    "mean": lambda first, second: (first + second) / 2,
    "where": lambda first, second: torch.where(LAST, first, second),
    "lerp": lambda first, second: torch.lerp(first, second, 0.3),
    "difference": lambda first, second: first - 0.5 * second,
}


@pytest.mark.parametrize("way", COMBINED)
def test_two_softmaxes_are_recorded_as_one_map_if_their_result_is_a_map(way):
    def both(query, key):
        first, second = (query @ key.mT).softmax(-1), (query @ key.mT / 3).softmax(-1)
        return COMBINED[way](first, second)

    model = Heads(lambda query, key: both(query, key) @ key)
    is_map = way != "difference"
    recording = looked_at(model, *GIVEN, missed={} if is_map else {"Heads": NO_MAP})
    if is_map:
        shows(recording, both(*model.heads(*GIVEN)), proof="proved")
