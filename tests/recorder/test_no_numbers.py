"""Queries, keys and biases with NaN or infinity: all other rows are recorded correctly."""

import pytest
import torch
from shown_maps import WIDTH, Heads
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.recorder.doors import sdpa
from heedful.recording import evidence

H, D, N, NAN, INF = 3, 4, 20, torch.nan, torch.inf
NEAR = {torch.float64: 1e-11, torch.float32: 3e-6, torch.float16: 2e-5, torch.bfloat16: 2e-5}
OF_KERNELS = NEAR | {torch.float16: 5e-3, torch.bfloat16: 5e-2}
every_type = pytest.mark.parametrize("kind", NEAR)
every_row = pytest.mark.parametrize("row", [0, 1])  # a row that is compared, and another one
PLACES = torch.arange(N)


class Shown(Heads):
    """Attention with the result of `weights`, or by an equivalent kernel, `attend`."""

    def __init__(self, weights, attend=None):
        super().__init__(self.attend, H, D)
        self.weights, self.how = weights, attend

    def attend(self, query, key):
        self.met = query.detach(), key.detach()
        return self.weights(query, key) @ key if self.how is None else self.how(query, key)

    @property
    def true(self):
        return self.weights(*self.met).double()


def calls_of(model, kind, texts=1, **inputs):
    """The calls of a model with random inputs, one for each text."""
    torch.manual_seed(3)
    with torch.no_grad(), heedful.record(model.to(kind)) as recording:
        model(torch.randn(texts, N, WIDTH, dtype=kind), **inputs)
    assert not recording.missed
    return [sequence[0] for sequence in recording.sequences]


def check(model, kind, near=NEAR, **options):
    """Check the weights against those of the model; a row of NaN is recorded as zeros."""
    for call, true in zip(calls_of(model, kind, **options), model.true, strict=True):
        assert call.proof in ("proved", "unproved"), call.why
        result = call.weights().double()
        is_nothing = true.isnan().all(dim=-1, keepdim=True)
        is_nothing &= (result == 0).all(dim=-1, keepdim=True)
        true = true.masked_fill(is_nothing, 0.0)
        torch.testing.assert_close(result, true, atol=near[kind], rtol=0, equal_nan=True)


def changed(tensor, *place, to=NAN):
    tensor = tensor.clone()
    tensor[place] = to
    return tensor


def hidden(row, keys=slice(None)):
    table = torch.zeros(N, N, dtype=torch.bool)
    table[row, keys] = True
    return table


def least(kind):
    return torch.finfo(kind).min


def added(row, kind, number, keys=slice(None)):
    return torch.zeros(N, N, dtype=kind).masked_fill(hidden(row, keys), number)


def none(key, place=slice(None), to=NAN):
    return changed(key, 0, place, 4, to=to)


BY_HAND = {  # scores of queries and keys, with one changed row
    "a query of NaN": lambda q, k, row: changed(q, 0, 0, row) @ k.mT,
    "a row of the least number beside a query of NaN": lambda q, k, row: (
        changed(q, 0, 2, row) @ k.mT + added(row, q.dtype, least(q.dtype))),
    "the least number twice": lambda q, k, row: q @ k.mT + 2 * added(row, q.dtype, least(q.dtype)),
    "a key of NaN": lambda q, k, row: (q @ none(k).mT).masked_fill(PLACES == 4, -INF),
    "a bias of NaN": lambda q, k, row: q @ k.mT + added(row, q.dtype, NAN, 0),
    "an infinite bias": lambda q, k, row: q @ k.mT + added(row, q.dtype, INF, 2),
    "whole numbers": lambda q, k, row: (
        q @ k.mT + ((PLACES - PLACES[:, None]) // 4) + hidden(row) * -10_000),
    "queries with no room": lambda q, k, row: (
        changed(q, 0, 0, row, to=torch.finfo(q.dtype).max) @ none(k, to=10.0).mT),
    "scores that rounding moves": lambda q, k, row: q * 300 @ k.mT,
    "a cap beside a query of NaN": lambda q, k, row: (
        (changed(q, 0, 2, row) @ k.mT).tanh() * 20),
}  # fmt: skip


@every_row
@every_type
@pytest.mark.parametrize("way", BY_HAND)
def test_weights_by_hand_equal_those_of_the_model(way, kind, row):
    check(Shown(lambda q, k: BY_HAND[way](q, k, row).softmax(-1).to(kind)), kind)


def by_kernel(change, mask, kind):
    """Attention by a kernel of torch, with queries and keys changed by `change`."""
    wide = torch.promote_types(kind, torch.float32)

    def attend(query, key):
        return scaled_dot_product_attention(*change(query, key), key, attn_mask=mask)

    def weights(query, key):
        query, key = change(query, key)
        scores = (query @ key.mT).to(wide) * D**-0.5
        if mask is None or mask.dtype != torch.bool:
            return (scores if mask is None else scores + mask).softmax(-1).to(kind)
        return (scores + torch.zeros(mask.shape).masked_fill(~mask, -INF)).softmax(-1).to(kind)

    return Shown(weights, attend)


KERNEL = {  # queries and keys, and a mask
    "a query of NaN": lambda row, kind: (lambda q, k: (changed(q, 0, 0, row), k), None),
    "an infinite query in a row of the least number": lambda row, kind: (
        lambda q, k: (changed(q, 0, 0, row, to=INF), k),
        added(row, kind, least(kind), slice(1, 9))),
    "a hidden key": lambda row, kind: (lambda q, k: (q, none(k, 1)), ~hidden(row, 4)),
    "a key to which minus infinity is added": lambda row, kind: (
        lambda q, k: (q, none(k, 1)), added(row, kind, -INF, 4)),
    "an infinite key that a number hides": lambda row, kind: (
        lambda q, k: (q, none(k, 0, INF)),
        torch.zeros(N, N, dtype=kind).masked_fill(PLACES[:, None] < PLACES, -6e4)),
}  # fmt: skip


def check_rows(model, kind, **options):
    """Check the rows that are finite in the model; a call with other rows reports that."""
    calls = calls_of(model, kind, **options)
    for call, true in zip(calls, model.true, strict=True):
        result, length = call.weights().double(), call.shape[1]
        of_numbers = true[:, :length].isfinite().all(-1)  # padding has no rows
        expected = true[:, :length, :length][of_numbers]
        torch.testing.assert_close(result[of_numbers], expected, atol=OF_KERNELS[kind], rtol=0)
        assert (call.proof, "queries or keys are NaN or infinite" in call.why) == ("unproved", True)


@every_row
@every_type
@pytest.mark.parametrize("way", KERNEL)
def test_finite_rows_of_a_kernel_equal_those_of_the_model(way, kind, row):
    check_rows(by_kernel(*KERNEL[way](row, kind), kind), kind)


@every_row
@every_type
@pytest.mark.parametrize("number", [NAN, "least"])
def test_a_bias_of_a_kernel_that_is_nan_or_the_lowest_number(number, kind, row):
    mask = added(row, kind, least(kind) if number == "least" else number, slice(1, 9))
    check(by_kernel(lambda q, k: (q, k), mask, kind), kind, OF_KERNELS)


@pytest.mark.parametrize("side", [0, 1])
def test_a_text_of_nan_does_not_change_other_texts(side):
    def change(*sides):
        return [changed(tensor, 1) if at == side else tensor for at, tensor in enumerate(sides)]

    check_rows(by_kernel(change, None, torch.float32), torch.float32, texts=3)
    model = Shown(lambda q, k: (change(q, k)[0] @ change(q, k)[1].mT).softmax(-1))
    check(model, torch.float32, texts=3)


@pytest.mark.parametrize("mask", ["boolean", -INF])
@pytest.mark.parametrize("no_number", [NAN, INF, -INF])
def test_padding_of_nan_does_not_change_the_other_text(no_number, mask):
    """If minus infinity is added, its keys turn every row of their text into NaN."""

    class Padded(Shown):
        def forward(self, x, attention_mask):
            sees = attention_mask[:, None, None] == 1
            self.added = torch.where(sees, 0.0, -INF)
            self.hides = sees if mask == "boolean" else self.added
            return super().forward(x)

    def padded(key):
        return changed(key, 1, slice(None), slice(15, None), to=no_number)

    model = Padded(
        lambda q, k: (q @ padded(k).mT * D**-0.5 + model.added).softmax(-1),
        lambda q, k: scaled_dot_product_attention(q, padded(k), k, attn_mask=model.hides),
    )
    mask = torch.ones(2, N, dtype=torch.long)
    mask[1, 15:] = 0
    check_rows(model, torch.float32, texts=2, attention_mask=mask)


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_a_fully_masked_text_does_not_make_a_model_causal(is_by_hand):
    """Its weights are recorded as zeros, which do not show that a model is causal."""
    sees = torch.ones(2, 1, N, N, dtype=torch.bool)
    sees[1] = False

    def attend(query, key):
        if not is_by_hand:
            return scaled_dot_product_attention(query, key, key, attn_mask=sees)
        return (query @ key.mT).masked_fill(~sees, -INF).softmax(-1) @ key

    with torch.no_grad(), heedful.record(model := Heads(attend, H, D)) as recording:
        model(torch.randn(2, N, WIDTH))
    assert [call.kind for calls in recording.sequences for call in calls] == ["self"] * 2


@pytest.mark.parametrize("is_small", [True, False])  # large ones are checked later
def test_values_of_nan_prove_nothing(is_small, monkeypatch):
    monkeypatch.setattr(evidence, "SMALL", evidence.SMALL if is_small else 0)
    values = torch.randn(1, H, N, D).masked_fill(PLACES[:, None] == N - 1, NAN)
    model = Shown(None, lambda q, k: scaled_dot_product_attention(q, k, values))
    assert [call.proof for call in calls_of(model, torch.float32)] == ["unproved"]


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("large", [-8e3, 1e5, -4e6, 1e8])
def test_a_large_bias_does_not_loosen_the_check(large, of_all, monkeypatch):
    bias = torch.zeros(N, N)
    bias[slice(None) if of_all else slice(1)] += large
    true = sdpa.from_kernel

    def observed(*arguments):
        seen = true(*arguments)
        seen.query = seen.query * torch.where(PLACES > 0, 1.05, 1.0)[:, None]
        return seen

    monkeypatch.setattr(sdpa, "from_kernel", observed)
    model = Heads(lambda q, k: scaled_dot_product_attention(q, k, k, attn_mask=bias), H, D)
    with torch.no_grad(), heedful.record(model) as recording:
        model(3 * torch.randn(1, N, WIDTH))
    assert recording[0].proof == "refuted" or (of_all and recording[0].proof == "unproved")
