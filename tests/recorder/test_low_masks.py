"""Masks that hide keys by adding −10,000: where scores are larger than that, they hide nothing."""

import pytest
import torch
from looked import WIDTH, Heads, looked_at
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.ops.causes import Causes
from heedful.recorder.doors import score_causes, weights_apart
from heedful.recording import certificate
from heedful.recorder.observed import Observed
from heedful.recorder.owners import mask_structure
from heedful.recorder.owners.mask_structure import Masks

H, D, N = 3, 4, 20
ROW = (torch.arange(N) == 1)[:, None]  # none of the eight that are compared
HALF = ROW & (torch.arange(N) < N // 2)


def by_hand(query, key, mask):
    return (query @ key.mT * D**-0.5 + mask).softmax(-1) @ key


def by_kernel(query, key, mask):
    return scaled_dot_product_attention(query, key, key, attn_mask=mask)


class Twice(Heads):
    """Two calls with one mask, the second of scores that are so many times as large."""

    def __init__(self, attend, times):
        super().__init__(attend, H, D)
        self.times = times

    def forward(self, x, mask):
        query, key = self.heads(x)
        return self.does(query, key, mask) + self.does(self.times * query, key, mask)


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
    monkeypatch.setattr(weights_apart, "is_hidden_key_weighed", lambda *_: looks.append(1))

    def attend(query, key, mask):
        return (query @ key.mT).masked_fill(HALF, -torch.inf).softmax(-1) @ key

    assert len(looked_at(Twice(attend, 1), torch.randn(1, N, WIDTH), None)) == 2
    assert not looks


@pytest.mark.parametrize("scale", [0.5, -3.0])
@pytest.mark.parametrize("softcap", [None, 40.0, -40.0])
@pytest.mark.parametrize("has_bias", [False, True])
def test_how_far_apart_scores_can_be(scale, softcap, has_bias):
    """Keys that point where the queries do, and against them, are as far apart as can be."""
    query = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(1, 4, 2, 2)
    key = torch.stack([query[0, 0, 1], -query[0, 0, 1]]).expand(1, 2, 2, 2)
    bias = torch.tensor([[[[-7.0, 5.0], [1.0, -torch.inf]]]]) if has_bias else None
    seen = Observed(query, key, None, None, scale, softcap=softcap, bias=bias)
    apart = 2 * 25 * abs(scale)
    expected = (apart if softcap is None else min(apart, 80)) + 12 * has_bias
    assert mask_structure._reach(seen) == pytest.approx(expected)
    nothing = Observed(query[:, :, :0], key, None, None, scale)
    assert mask_structure._reach(nothing) == 0


def test_a_text_of_no_numbers_beside_a_mask_that_scores_reach_over():
    query = torch.full((2, H, N, D), 3e3)
    query[1] = torch.nan
    mask = (HALF * -1e4).expand(1, 1, N, N)
    seen = Masks().split(Observed(query, query, None, None, 1.0, mask=mask))
    assert seen.mask is None
    assert torch.equal(seen.bias, mask)


def test_the_gap_of_a_mask_is_between_what_it_hides_and_the_rest():
    """Scores that may be 12,320 apart come within 100 of 12,392, and not of 12,692."""
    query = torch.full((1, 1, 2, 1), 2200**0.5)
    for low, is_hiding in ((-12400.0, False), (-12700.0, True)):
        table = torch.tensor([[[[0.0, low], [-8.0, 0.0]]]])
        seen = Masks().split(Observed(query, query, None, None, 2.8, mask=table))
        assert (seen.mask is not None) == is_hiding


def test_a_mask_that_was_seen_before_with_fewer_keys():
    mask = (HALF * -1e4).expand(1, 1, N, N)
    masks = Masks()
    for keys in (N, N - 2):
        query, key = torch.randn(1, H, N, D), torch.randn(1, H, keys, D)
        for own in (mask, mask.clone()):  # the same one, and one with the same numbers
            seen = masks.split(Observed(query, key, None, None, 1.0, mask=own))
            assert torch.equal(seen.mask, mask[..., :keys] == 0)


def test_a_mask_of_which_one_call_has_rows_written_anew_is_another_to_the_next():
    """Beside −4e6 small scores are lost, and large ones are rounded."""
    mask = (ROW * -4e6).expand(N, N).contiguous()

    def attend(query, key, mask):
        return by_kernel(query / 1000, key, mask)

    torch.manual_seed(1)
    model, x = Twice(attend, 1e3), torch.randn(1, N, WIDTH)
    recording = looked_at(model, x, mask)
    query, key = model.heads(x)
    for call, times in zip(recording, (1e-3, 1), strict=True):
        scores = times * query @ key.mT * D**-0.5 + mask
        assert call.proof != "refuted"
        torch.testing.assert_close(call.weights(), scores.softmax(-1)[0], atol=1e-3, rtol=0)


def test_a_capped_score_may_be_turned():
    def attend(query, key, mask):
        return (-1e5 * (query @ key.mT).tanh() + mask).softmax(-1) @ key

    torch.manual_seed(2)
    model, x = Twice(attend, 1).double(), torch.randn(1, N, WIDTH).double()
    [call, _] = looked_at(model, x, (HALF * -1e4).double())
    query, key = model.heads(x)
    true = (-1e5 * (query @ key.mT).tanh() + HALF * -1e4).softmax(-1)
    assert call.proof == "proved"
    torch.testing.assert_close(call.weights(), true[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
def test_a_kernel_adds_the_least_half_as_a_number(kind):
    mask = torch.where(HALF, -65504.0, torch.where(ROW, -40000.0, 0.0)).to(kind)

    class Kernel(Twice):
        def forward(self, x, mask):
            query, key = self.heads(x)
            return scaled_dot_product_attention(self.times * query, key, key, attn_mask=mask)

    torch.manual_seed(0)
    model, x = Kernel(None, 5000).to(kind), torch.randn(1, N, WIDTH).to(kind)
    with torch.no_grad():  # else it is no one kernel
        [call] = looked_at(model, x, mask)
        query, key = model.heads(x)
    scores = (model.times * query).float() @ key.float().mT * D**-0.5
    true = (scores + mask.float()).softmax(-1)[0]
    assert call.proof != "refuted"
    torch.testing.assert_close(call.weights(), true, atol=3e-2, rtol=0)


LOST = {  # what scores have lost beside a large number of their row, and masks hide part of it
    "bfloat16": (torch.bfloat16, lambda s, row: s + (row * 500.0).bfloat16()),
    "float16": (torch.float16, lambda s, row: s + (row * 2000.0).half()),
    "a scale since": (torch.float32, lambda s, row: (s + row * -1e6) * 1.3),
    "once": (torch.float32, lambda s, row: s + row * -4e6),
    "twice": (torch.float32, lambda s, row: s + row * -1e6 + row * -3e6),
}


@pytest.mark.parametrize("way", LOST)
def test_a_row_among_many_that_has_lost_its_scores_is_not_proved(way):
    """Of 600 rows 256 are looked at, and those that the most was added to."""
    kind, change = LOST[way]
    row = (torch.arange(600) == 1)[:, None]
    hidden = row & (torch.arange(600) > 3)

    def attend(query, key, mask):
        return change(query @ key.mT, row).masked_fill(hidden, -torch.inf).softmax(-1) @ key

    model = Twice(attend, 1).to(kind)
    [call, _] = looked_at(model, torch.randn(1, 600, WIDTH, dtype=kind), None)
    assert call.proof == "unproved"


def test_scores_that_their_type_has_no_room_for():
    """In float16 what is less than -65,504 is minus infinity, and has no weight."""

    def attend(query, key, mask):
        return ((1000 * query @ key.mT + (ROW * -65504.0).half()) * 1e-3).softmax(-1) @ key

    model = Twice(attend, 1).half()
    [call, _] = looked_at(model, 4 * torch.randn(1, N, WIDTH).half(), None)
    assert call.proof == "unproved"


TABLES = {  # of a narrow type, which meet scores of a wider one
    "divided": lambda s, of: s / of(H, 1, 1).exp(),
    "multiplied twice": lambda s, of: s * of(H, 1, 1).exp() * of(H, 1, 1).exp(),
    "added twice": lambda s, of: s + of(N, N) + of(N, N) / 3,
    "added and scaled": lambda s, of: (s + of(N, N)) * 1.3,
    "added beside hidden rows": lambda s, of: (s.masked_fill(ROW, -1e4) + of(N, N)) / 3,
    "a factor beside hidden rows": lambda s, of: s * of(H, 1, 1).exp() + ROW * -1e9,
    "a factor, and hidden twice": lambda s, of: (s * of(H, 1, 1).exp()) + ROW * -1e30 + 3.0,
}


@pytest.mark.parametrize(
    ("kind", "narrow"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float64, torch.float32),
        (torch.float64, torch.float64),
        (torch.float32, torch.float64),
    ],
)
@pytest.mark.parametrize("way", TABLES)
def test_tables_of_a_narrow_type_keep_all_their_digits(way, kind, narrow):
    def of(*shape):
        chance = torch.Generator().manual_seed(sum(shape))
        return torch.randn(*shape, generator=chance).to(narrow)

    def attend(query, key, mask):
        weights = TABLES[way](query @ key.mT, of).softmax(-1)
        model.true = weights.detach()
        return weights.to(key.dtype) @ key

    model = Twice(attend, 1).to(kind)
    recording = looked_at(model, torch.randn(1, N, WIDTH, dtype=kind), None)
    is_rough = "hidden rows" in way and narrow == torch.float64  # beside 1e9, where it counts
    assert recording[0].proof == "proved" or is_rough, recording[0].why
    assert recording[0].proof != "refuted"
    near = 3e-6 if torch.float32 in (kind, narrow) else 1e-7 if is_rough else 1e-11
    shown = recording[1].weights().to(model.true)
    torch.testing.assert_close(shown, model.true[0], atol=near, rtol=0)


@pytest.mark.parametrize("times", [1e7, 1e8])
def test_scores_of_a_size_at_which_their_type_tells_no_keys_apart(times):
    """In bfloat16 two of 1e9 are the same unless they are 4,000,000 apart."""

    def attend(query, key, mask):
        weights = (query @ key.mT * times).softmax(-1)
        model.true = weights.detach()
        return weights @ key

    for seed in range(6):
        torch.manual_seed(seed)
        model = Twice(attend, 1).bfloat16()
        recording = looked_at(model, torch.randn(1, N, WIDTH).bfloat16(), None)
        assert recording[1].proof != "refuted"
        if recording[1].proof == "proved":
            torch.testing.assert_close(
                recording[1].weights(), model.true[0].float(), atol=5e-2, rtol=0
            )


def test_rows_without_a_sum_do_not_keep_the_sums_of_others_from_being_known():
    of = Causes(torch.randn(H, N, D), torch.randn(H, N, D), 0.5)
    rows = torch.tensor([0, 3])
    sums = (0.5 * of.query @ of.key.mT).logsumexp(-1)[:, rows]
    given = sums.clone()
    given[:, 0] = torch.nan
    assert certificate._agree(of, rows, sums, given)
    given[:, 1] += 1
    assert not certificate._agree(of, rows, sums, given)


LEAST = {kind: torch.finfo(kind).min for kind in (torch.float32, torch.bfloat16, torch.float64)}


@pytest.mark.parametrize("row", [1, 2])
@pytest.mark.parametrize(
    ("kind", "low", "scale"),
    [
        (torch.float32, LEAST[torch.float32], 200.0),
        (torch.float32, LEAST[torch.float32] / 2, 200.0),
        (torch.bfloat16, LEAST[torch.bfloat16], 200.0),
        (torch.float64, LEAST[torch.float64], 1e10),
        (torch.float64, LEAST[torch.float32], 1e10),
    ],
)
def test_a_row_that_the_least_number_hides_beside_one_that_cannot_be_worked_out(
    kind, low, scale, row
):
    """In row 3 scores decide what they become beside 1e9, so it stays as it is."""
    mask = torch.zeros(N, N, dtype=kind)
    mask[row], mask[3] = low, -1e9 if kind != torch.float64 else -1e18

    def attend(query, key, mask):
        return scaled_dot_product_attention(query, key, key, attn_mask=mask, scale=scale)

    model, x = Twice(attend, 1).to(kind), torch.randn(1, N, WIDTH).to(kind)
    with torch.no_grad():
        call, _ = looked_at(model, x, mask)
    assert call.proof != "refuted"
    expected = torch.full((H, N), 1 / N)
    torch.testing.assert_close(call.weights()[:, row].float(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    ("kind", "narrow"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float64, torch.float32),
    ],
)
def test_a_row_of_numbers_beside_a_bias_of_a_narrow_type_keeps_its_digits(kind, narrow, row):
    hidden = (torch.arange(N) == row)[:, None]
    bias = torch.randn(N, N).to(narrow)
    bias[row, 3] = 2.015625

    def attend(query, key, mask):
        weights = ((query @ key.mT).masked_fill(hidden, -1e4) + bias).softmax(-1)
        model.true = weights.detach()
        return weights @ key

    model = Twice(attend, 1).to(kind)
    call = looked_at(model, torch.randn(1, N, WIDTH, dtype=kind), None)[1]
    assert call.proof == "proved", call.why
    near = 1e-11 if kind == torch.float64 else 3e-6
    torch.testing.assert_close(call.weights(), model.true[0], atol=near, rtol=0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("row", [0, 1])
def test_a_query_that_is_no_number_refutes_no_other_row(row, kind):
    def attend(query, key, mask):
        query = query.clone()
        query[:, 0, row] = torch.nan
        weights = (query @ key.mT).softmax(-1)
        model.true = weights.detach()
        return weights @ key

    model = Twice(attend, 1).to(kind)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, N, WIDTH, dtype=kind), None)
    call = recording[0]
    assert call.proof == "proved", call.why
    near = {torch.bfloat16: 5e-2, torch.float32: 3e-6, torch.float64: 1e-11}[kind]
    others = torch.arange(N) != row
    true = model.true[0].to(call.weights())
    torch.testing.assert_close(call.weights()[:, others], true[:, others], atol=near, rtol=0)
