"""`streaming_attention`: the output of attention and statistics of its weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.errors import ArgumentError
from heedful.ops import statistics, streaming
from heedful.ops.arguments import check
from heedful.ops.masks import Causal, Dense, KeyRanges, Padding, Window
from heedful.ops.streaming import STATISTICS, streaming_attention


@settings(max_examples=40)
@given(
    lead=st.sampled_from([(), (3,), (2, 4), (2, 1, 4)]),
    N=st.integers(1, 9),
    M=st.integers(1, 9),
    kv_heads=st.sampled_from([1, 2, 4]),
    kind=st.sampled_from(["none", "causal", "padding", "table", "bias", "window", "runs"]),
)
def test_statistics_equal_those_of_the_full_weights(lead, N, M, kv_heads, kind):
    key_lead = (*lead[:-1], kv_heads) if len(lead) > 1 else lead
    query = torch.randn(*lead, N, 5, dtype=torch.float64)
    key, value = (torch.randn(*key_lead, M, d, dtype=torch.float64) for d in (5, 3))
    batch = lead[:-1] if len(lead) > 1 else lead
    start = torch.randint(0, M, (N,))
    arguments = {
        "runs": {"mask": KeyRanges(start, start + torch.randint(0, 4, (N,))), "causal": True},
        "none": {},
        "causal": {"causal": True},
        "padding": {"mask": Padding(torch.rand(*batch, M) < 0.7)},
        "table": {"mask": torch.rand(*lead, N, M) < 0.7},
        "bias": {"bias": torch.randn(N, M, dtype=torch.float64), "causal": True},
        "window": {"mask": Causal() & Window(2)},
    }[kind]
    result = streaming_attention(query, key, value, statistics=list(STATISTICS), **arguments)
    steps = heedful.steps(query, key, value, **arguments)
    torch.testing.assert_close(result.output, steps.context, atol=1e-9, rtol=1e-9)
    weights = steps.weights
    empty = weights.sum(-1) == 0
    position = torch.arange(N)[:, None] + M - N
    distance = (position - torch.arange(M)).abs()

    others = (-2, -3) if weights.ndim > 3 else (-2,)
    first = (weights > 0).sum(others, keepdim=True).gt(0).int().argmax(-1, keepdim=True)
    first = first if kind in ("padding", "table") else torch.zeros_like(first)

    def weight_on(keys):
        weight = weights.gather(-1, keys.expand(*weights.shape[:-1], 1).clamp(0, M - 1))
        has_choice = (weight > 0) & ((weights > 0).sum(-1, keepdim=True) > 1)
        has_choice &= (keys >= 0) & (keys < M)
        return weight.where(has_choice, torch.nan)[..., 0]

    expected = {
        "entropy": torch.special.entr(weights).sum(-1),
        "largest": weights.amax(-1),
        "distance": (weights * distance).sum(-1),
        "self": weight_on(position),
        "previous": weight_on(position - 1),
        "sink": weight_on(torch.where(position > first, first, -1)),
    }
    for name, value in expected.items():
        expected[name] = value.masked_fill(empty, torch.nan)
    expected["received"] = weights.sum(-2).float()
    torch.testing.assert_close(result.statistics, expected, atol=1e-6, rtol=1e-6, equal_nan=True)
    totals = steps.masked.logsumexp(-1).masked_fill(empty, torch.nan)
    torch.testing.assert_close(result.log_sum_exp, totals, atol=1e-9, rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("form", ["padding", "table", "both"])
def test_with_padding_on_the_left_the_sink_is_the_first_real_key(form):
    query, key, value = torch.randn(3, 2, 4, 6, 5)
    padding = Padding.from_lengths([6, 2], 6, side="left")
    mask = {
        "padding": padding,
        "table": padding.keep[:, None, None],
        "both": padding & Dense(torch.ones(6, 6).bool()),
    }[form]
    result = streaming_attention(query, key, value, mask=mask, causal=True, statistics=["sink"])
    cut = [tensor[1:, :, 4:] for tensor in (query, key, value)]
    unpadded = streaming_attention(*cut, causal=True, statistics=["sink"])
    sink = result.statistics["sink"]
    torch.testing.assert_close(sink[1:, :, 4:], unpadded.statistics["sink"], equal_nan=True)
    assert result.statistics["sink"][1, :, :5].isnan().all()  # the fifth token has no choice
    full = heedful.steps(query, key, value, causal=True).weights
    torch.testing.assert_close(result.statistics["sink"][0, :, 1:], full[0, :, 1:, 0])


def test_gradients_go_through_the_output():
    query, key, value = torch.randn(3, 2, 7, 4, dtype=torch.float64, requires_grad=True)
    streamed = streaming_attention(query, key, value, causal=True)
    plain = heedful.attention(query, key, value, causal=True)
    gradients = (torch.autograd.grad(o.sin().sum(), query) for o in (streamed.output, plain))
    torch.testing.assert_close(*gradients)
    assert not streamed.statistics["entropy"].requires_grad


def test_an_unknown_statistic_raises_one_line():
    query = torch.randn(3, 4)
    with pytest.raises(ArgumentError, match="statistic 'entropie'; expected received, entropy"):
        streaming_attention(query, query, query, statistics=["entropie"])


@pytest.mark.parametrize("is_causal", [False, True])
def test_key_ranges_build_no_full_table(is_causal, monkeypatch):
    """With 3,000 tokens in documents of 100, masks are built only for a few rows at once."""
    N, sizes, allowed = 3000, [], KeyRanges.allowed

    def counting(self, query, key, shape):
        sizes.append(query.numel() * key.numel())
        return allowed(self, query, key, shape)

    runs = KeyRanges.from_lengths([100] * 30)
    query, key, value = torch.randn(3, 2, 2, N, 4)
    arguments = check(
        query, key, value, mask=runs & Causal() if is_causal else runs, bias=None, causal=False,
        scale=None, dropout=0.0,
    )  # fmt: skip
    monkeypatch.setattr(KeyRanges, "allowed", counting)
    for inputs, _ in streaming._inputs(arguments):  # the inputs of the statistics
        statistics.gather(inputs, statistics.Entropy())
    assert sizes
    assert max(sizes) <= N * N // 4
