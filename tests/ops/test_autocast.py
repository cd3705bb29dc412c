"""Attention under CPU autocast: outputs and gradients are computed in float32."""

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
def test_only_inputs_are_rounded(tokens, seed, with_bias):
    torch.manual_seed(seed)
    inputs = [torch.randn(2, 3, tokens, 8).bfloat16().requires_grad_() for _ in range(3)]
    bias = torch.randn(3, tokens, tokens).bfloat16() if with_bias else None
    with torch.autocast("cpu", torch.bfloat16):
        output = heedful.attention(*inputs, bias=bias, causal=True)
    wide = [tensor.detach().double().numpy() for tensor in inputs]
    expected = by_definition(*wide, 0 if bias is None else bias.double().numpy())
    np.testing.assert_allclose(output.detach().double().numpy(), expected, atol=2e-6)
    direction = torch.randn_like(output)
    gradients = torch.autograd.grad(output, inputs, direction)
    precise = [tensor.detach().double().requires_grad_() for tensor in inputs]
    bias = None if bias is None else bias.double()
    output = heedful.attention(*precise, bias=bias, causal=True)
    references = torch.autograd.grad(output, precise, direction.double())
    for gradient, reference in zip(gradients, references, strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), reference, atol=1e-3, rtol=2**-8)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_wider_types_are_unchanged(kind):
    query = torch.randn(1, 2, 5, 4, dtype=kind)
    with torch.autocast("cpu", torch.bfloat16):
        output = heedful.attention(query, query, query)
    assert output.dtype == kind
    torch.testing.assert_close(output, heedful.attention(query, query, query))


def test_every_path_equals_the_kernel():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 9, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        expected, weights = heedful.attention(query, key, value, causal=True, return_weights=True)
        outputs = {
            "dropout": heedful.attention(query, key, value, causal=True, dropout=1e-12),
            "vmap": torch.vmap(lambda *x: heedful.attention(*x, causal=True))(query, key, value),
            "steps": heedful.steps(query, key, value, causal=True).context,
        }
    outputs["weights"] = weights @ value
    for path, context in outputs.items():
        assert context.dtype == torch.float32, path
        torch.testing.assert_close(context, expected, msg=lambda text, path=path: f"{path}: {text}")
