"""Attention rollout, against the product of matrices in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.errors import ArgumentError
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.ops.rollout import rollout
from heedful.recording.sequence import rollout_calls


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 7), st.randoms())
def test_rollout_is_a_row_of_the_product_of_layers(layers, heads, tokens, random):
    torch.manual_seed(random.randrange(1000))
    weights = torch.randn(layers, heads, tokens, tokens, dtype=torch.float64).softmax(-1)
    product = np.eye(tokens)
    for layer in weights.numpy():
        product = (layer.mean(0) + np.eye(tokens)) / 2 @ product
    query = random.randrange(tokens)
    np.testing.assert_allclose(rollout(weights.flip(0), query).numpy(), product[query], atol=1e-12)


def test_the_rollout_of_a_recording():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=20, context_length=8, width=16, layers=3, heads=2)).eval()
    with torch.inference_mode(), heedful.record(model) as recording:
        model(torch.randint(20, (1, 7)))
    means = [call.weights().double().mean(0) for call in recording]
    identity = torch.eye(7, dtype=torch.float64)
    first, second, third = ((mean + identity) / 2 for mean in means)
    torch.testing.assert_close(recording.rollout(5), (third @ second @ first)[5])
    torch.testing.assert_close(recording.rollout(5, layer=1), (second @ first)[5])
    assert recording.rollout(5).sum() == pytest.approx(1)


def test_a_rollout_needs_all_layers_and_uses_the_self_attention_of_one_side():
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocabulary=20, context_length=8, width=16, layers=3, heads=2)).eval()
    with torch.inference_mode(), heedful.record(gpt, layers=[1, 2]) as recording:
        gpt(torch.randint(20, (1, 7)))
    with pytest.raises(ArgumentError, match=r"layers \[1, 2\].*all layers from 0"):
        recording.rollout(5)
    sizes = {"width": 16, "layers": 2, "heads": 2, "context_length": 8}
    model = Seq2Seq(Seq2SeqConfig(vocabulary=20, **sizes)).eval()
    with torch.inference_mode(), heedful.record(model) as recording:
        model(torch.randint(20, (1, 7)), torch.randint(20, (1, 7)))
    own = [call for call in recording if "decoder" in call.name and not call.is_cross]
    others = [call for call in recording if call not in own]
    assert len(own) == 2 < len(others)
    mean = [(call.weights().double().mean(0) + torch.eye(7).double()) / 2 for call in own]
    places = [list(recording).index(call) for call in own]
    calls = list(recording)[: places[-1] + 1]
    shares = rollout((map(call.weights, call.heads) for call in rollout_calls(calls)), 5)
    torch.testing.assert_close(shares, (mean[1] @ mean[0])[5])
    with pytest.raises(ArgumentError, match="cross-attention"):
        rollout_calls([call for call in recording if call.is_cross])


def test_rollout_needs_one_text_in_every_layer():
    with pytest.raises(ArgumentError, match="one text in every layer"):
        rollout([[torch.rand(3, 4)]], 0)
    with pytest.raises(ArgumentError, match="one text in every layer"):
        rollout([[torch.rand(3, 3)], [torch.rand(4, 4)]], 0)
    with pytest.raises(ArgumentError, match="at least one"):
        rollout([], 0)


def test_heads_of_a_recording_by_layer_and_number():
    model = GPT(GPTConfig(vocabulary=20, context_length=8, width=16, layers=3, heads=2)).eval()
    with torch.inference_mode(), heedful.record(model) as recording:
        model(torch.randint(20, (1, 7)))
    chosen = [(2, 1), (0, 0)]
    assert [head[:2] for head in recording.heads(only=chosen)] == sorted(chosen)
    assert recording.heads(only=chosen)[1] == next(h for h in recording.heads() if h[:2] == (2, 1))
