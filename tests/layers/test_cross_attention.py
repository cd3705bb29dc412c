"""Cross-attention against torch, with a memory of another width, padding and a cache."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.layers import CrossAttention, KeyValueCache
from heedful.ops.masks import Padding


def torch_layer(layer, width, memory_width):
    """Return an nn.MultiheadAttention with the weights of the layer."""
    reference = torch.nn.MultiheadAttention(
        width, layer.heads, kdim=memory_width, vdim=memory_width, batch_first=True
    )
    key, value = layer.memory.weight.chunk(2)
    weights = {"q_proj_weight": layer.query.weight, "k_proj_weight": key, "v_proj_weight": value}
    if width == memory_width:  # then torch has a single matrix
        weights = {"in_proj_weight": torch.cat([layer.query.weight, key, value])}
    key_bias, value_bias = layer.memory.bias.chunk(2)
    weights |= {
        "in_proj_bias": torch.cat([layer.query.bias, key_bias, value_bias]),
        "out_proj.weight": layer.output.weight,
        "out_proj.bias": layer.output.bias,
    }
    reference.load_state_dict(weights)
    return reference


@settings(max_examples=15)
@given(
    heads=st.integers(1, 4),
    head_width=st.integers(1, 4),
    memory_width=st.integers(1, 9),
    tokens=st.integers(1, 7),
    keys=st.integers(1, 9),
)
def test_outputs_and_gradients_equal_torch(heads, head_width, memory_width, tokens, keys):
    width = heads * head_width
    layer = CrossAttention(width, memory_width, heads=heads, bias=True)
    reference = torch_layer(layer, width, memory_width)
    inputs = [torch.randn(2, tokens, width), torch.randn(2, keys, memory_width)]
    keep = torch.arange(keys) < torch.tensor([[keys], [max(1, keys - 2)]])
    direction = torch.randn(2, tokens, width)
    results = []
    for call in (
        lambda x, memory: layer(x, memory, mask=Padding(keep)),
        lambda x, memory: reference(x, memory, memory, key_padding_mask=~keep)[0],
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        output = call(*leaves)
        output.backward(direction)
        results.append([output, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*results, atol=2e-6, rtol=1e-5)
    _, weights = reference(*inputs, inputs[1], key_padding_mask=~keep, average_attn_weights=False)
    steps = layer.steps(*inputs, mask=Padding(keep))
    torch.testing.assert_close(steps.weights, weights, atol=1e-6, rtol=1e-5)


def cache_for(layer, batch, capacity):
    return KeyValueCache(
        layers=1, batch=batch, kv_heads=layer.heads, capacity=capacity,
        head_width=layer.head_width,
    )[0]  # fmt: skip


@pytest.mark.parametrize("mask", [None, Padding.from_lengths([7, 2, 5], 7)])
def test_the_memory_is_projected_once(mask):
    layer = CrossAttention(8, 5, heads=2)
    words, memory = torch.randn(3, 4, 8), torch.randn(3, 7, 5)
    full, cache, calls = layer(words, memory, mask=mask), cache_for(layer, 3, 9), []
    layer.memory.register_forward_hook(lambda *_: calls.append(1))
    parts = [layer(words[:, n : n + 1], memory, mask=mask, cache=cache) for n in range(4)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full, atol=1e-6, rtol=1e-5)
    assert len(calls) == 1


def test_gradients():
    layer = CrossAttention(4, 3, heads=2).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True)
    inputs = (x, memory, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, memory, *_: layer(x, memory), inputs)


def test_wrong_arguments_are_refused(as_a_user):
    layer = CrossAttention(8, 5, heads=2)
    x, memory = torch.zeros(3, 4, 8), torch.zeros(3, 7, 5)
    for call, words in [
        (lambda: layer(x, torch.zeros(3, 7, 8)), r"memory of width 8; expected .* 5"),
        (lambda: layer(x, memory[0]), r"memory of shape \(7, 5\)"),
        (lambda: layer(x, memory[:1]), "batch size 1 for x of batch size 3"),
        (lambda: CrossAttention(8, 0), r"a memory of width 0"),
        (lambda: CrossAttention(8, heads=3), "divides the width"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            call()
