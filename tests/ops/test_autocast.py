"""Attention where autocast narrows a CPU's products: it stays in float32, gradients too."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful


def by_definition(query, key, value, bias):
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(query.shape[-1]) + bias
    scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


@given(tokens=st.integers(1, 40), seed=st.integers(0, 9), with_bias=st.booleans())
@settings(max_examples=15)
def test_only_what_comes_in_is_rounded(tokens, seed, with_bias):
    torch.manual_seed(seed)
    inputs = [torch.randn(2, 3, tokens, 8).bfloat16().requires_grad_() for _ in range(3)]
    bias = torch.randn(3, tokens, tokens).bfloat16() if with_bias else None
    with torch.autocast("cpu", torch.bfloat16):
        found = heedful.attention(*inputs, bias=bias, causal=True)
    wide = [tensor.detach().double().numpy() for tensor in inputs]
    expected = by_definition(*wide, 0 if bias is None else bias.double().numpy())
    np.testing.assert_allclose(found.detach().double().numpy(), expected, atol=2e-6)
    asked = torch.randn_like(found)
    gradients = torch.autograd.grad(found, inputs, asked)
    precise = [tensor.detach().double().requires_grad_() for tensor in inputs]
    output = heedful.attention(*precise, bias=None if bias is None else bias.double(), causal=True)
    for gradient, of in zip(
        gradients, torch.autograd.grad(output, precise, asked.double()), strict=True
    ):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), of, atol=1e-3, rtol=2**-8)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_wider_types_stay_as_they_are(kind):
    query = torch.randn(1, 2, 5, 4, dtype=kind)
    with torch.autocast("cpu", torch.bfloat16):
        found = heedful.attention(query, query, query)
    assert found.dtype == kind
    torch.testing.assert_close(found, heedful.attention(query, query, query))


def test_every_road_gives_what_the_kernel_gives():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 9, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        expected, weights = heedful.attention(query, key, value, causal=True, return_weights=True)
        found = {
            "dropout": heedful.attention(query, key, value, causal=True, dropout=1e-12),
            "vmap": torch.vmap(lambda *of: heedful.attention(*of, causal=True))(query, key, value),
            "steps": heedful.steps(query, key, value, causal=True).context,
        }
    found["weights"] = weights @ value
    for road, context in found.items():
        assert context.dtype == torch.float32, road
        torch.testing.assert_close(context, expected, msg=lambda text, road=road: f"{road}: {text}")
