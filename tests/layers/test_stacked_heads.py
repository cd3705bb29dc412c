"""Separate heads and `MultiHeadAttention`: equal weights, outputs and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.layers import MultiHeadAttention, StackedHeads


def gradients_by_row(layer):
    """Return the gradients of all projections, in the same order for both forms."""
    if isinstance(layer, StackedHeads):
        parts = [getattr(head, part) for part in ("query", "key", "value") for head in layer.heads]
        rows = [torch.cat([getattr(p, n).grad for p in parts]) for n in parts[0].state_dict()]
    else:
        rows = [p.grad for p in layer.projection.parameters()]
    return [*rows, *(p.grad for p in layer.output.parameters())]


@settings(max_examples=25)
@given(
    heads=st.integers(1, 5),
    head_width=st.integers(1, 5),
    width=st.integers(1, 9),
    tokens=st.integers(1, 9),
    bias=st.booleans(),
    output_bias=st.booleans(),
    causal=st.booleans(),
    inverse=st.booleans(),
)
def test_both_forms_are_equal(heads, head_width, width, tokens, bias, output_bias, causal, inverse):
    options = {"head_width": head_width, "bias": bias, "output_bias": output_bias}
    if inverse:
        product = MultiHeadAttention(width, heads, **options)
        stacked = StackedHeads.from_product(product)
    else:
        stacked = StackedHeads(width, heads, **options)
        product = stacked.to_product()
    first, second = (sum(p.numel() for p in layer.parameters()) for layer in (stacked, product))
    assert first == second
    x, direction = torch.randn(2, tokens, width), torch.randn(2, tokens, width)
    outputs, gradients = [], []
    for layer in (stacked, product):
        inputs = x.clone().requires_grad_()
        output = layer(inputs, causal=causal)
        output.backward(direction)
        outputs.append(output)
        gradients.append([inputs.grad, *gradients_by_row(layer)])
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_a_round_trip_keeps_the_weights():
    first = StackedHeads(12, 3, bias=True, dropout=0.25).double().eval()
    second = StackedHeads.from_product(first.to_product())
    assert not second.training
    assert second.heads[0].dropout == 0.25
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()


@pytest.mark.parametrize("options", [{"kv_heads": 2}, {"qk_norm": True}])
def test_grouped_keys_and_norms_are_refused(options):
    with pytest.raises(ArgumentError, match="a key head for each head, and no norm"):
        StackedHeads.from_product(MultiHeadAttention(12, 4, **options))
