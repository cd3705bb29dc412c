import pytest
import torch
from torch import nn

from heedful.errors import ArgumentError
from heedful.layers import (
    CausalAttention,
    CrossAttention,
    KeyValueCache,
    MultiHeadAttention,
    StackedHeads,
)
from heedful.ops.masks import Padding, Window
from heedful.ops.positions import rotary


def with_weights(ours, torchs):
    """Copy the weights of our layer to torch's multi-head attention."""
    with torch.no_grad():
        torchs.in_proj_weight.copy_(ours.projection.weight)
        torchs.in_proj_bias.copy_(ours.projection.bias)
        torchs.out_proj.load_state_dict(ours.output.state_dict())
    return torchs


@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_equal_torch(causal):
    ours = MultiHeadAttention(12, 3, bias=True).double()
    reference = with_weights(ours, nn.MultiheadAttention(12, 3, batch_first=True).double())
    x = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    expected, weights = reference(x, x, x, attn_mask=forbidden, average_attn_weights=False)
    output = ours(x, causal=causal)
    torch.testing.assert_close(ours.steps(x, causal=causal).weights, weights, atol=1e-12, rtol=0)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)
    direction = torch.randn_like(output)
    expected_gradients = torch.autograd.grad(expected, [x, reference.in_proj_weight], direction)
    gradients = torch.autograd.grad(output, [x, ours.projection.weight], direction)
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_grouped_keys_equal_repeated_keys():
    grouped = MultiHeadAttention(20, 4, kv_heads=2, head_width=6)
    full = MultiHeadAttention(20, 4, head_width=6)
    query, key, value = grouped.projection.weight.unflatten(0, (-1, 6)).split([4, 2, 2])
    repeated = [query, *(t.repeat_interleave(2, dim=0) for t in (key, value))]
    with torch.no_grad():
        full.projection.weight.copy_(torch.cat(repeated).flatten(0, 1))
    full.output.load_state_dict(grouped.output.state_dict())
    x = torch.randn(3, 5, 20)
    torch.testing.assert_close(grouped(x, causal=True), full(x, causal=True))


def test_qk_norm_gives_a_mean_square_of_1():
    layer = MultiHeadAttention(24, 3, qk_norm=True)
    query, key, value = layer.project(100 * torch.randn(2, 5, 24))
    for heads in (query, key):
        torch.testing.assert_close(heads.square().mean(-1), torch.ones(2, 3, 5), atol=1e-3, rtol=0)
    assert value.square().mean() > 10


@pytest.mark.parametrize("mask", [None, Window(3), Padding.from_lengths([4, 9], 9)])
def test_pieces_with_a_cache_equal_a_single_pass(mask):
    layer = MultiHeadAttention(16, 4, kv_heads=2, qk_norm=True).eval()
    x = torch.randn(2, 9, 16)
    angles = rotary(torch.arange(9), 4)
    full = layer(x, causal=True, rotary=angles, mask=mask)
    cache = KeyValueCache(layers=1, batch=2, kv_heads=2, capacity=9, head_width=4)[0]
    pieces = []
    for start, stop in [(0, 4), (4, 5), (5, 9)]:
        part = mask if not isinstance(mask, Padding) else Padding(mask.keep[:, :stop])
        rotary_ = tuple(t[start:stop] for t in angles)
        pieces.append(layer(x[:, start:stop], causal=True, rotary=rotary_, mask=part, cache=cache))
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, atol=1e-6, rtol=0)


def test_a_full_cache_raises():
    cache = KeyValueCache(layers=1, batch=1, kv_heads=1, capacity=2, head_width=4)
    with pytest.raises(ArgumentError, match="capacity of 2"):
        cache[0].append(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4))


STACKED = StackedHeads(12, 3, dropout=0.5)


@pytest.mark.parametrize(
    "layer",
    [
        CausalAttention(12, dropout=0.5),
        CrossAttention(12, heads=2, dropout=0.5),
        MultiHeadAttention(12, 3, dropout=0.5),
        STACKED,
        STACKED.to_product(),
        StackedHeads.from_product(STACKED.to_product()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_is_for_training_only(layer):
    inputs = [torch.randn(2, 6, 12)] * (2 if isinstance(layer, CrossAttention) else 1)
    assert not torch.equal(layer(*inputs), layer(*inputs))
    layer.eval()
    assert torch.equal(layer(*inputs), layer(*inputs))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 64, "heads": 12}, "try 8 heads|try 16 heads"),
        ({"width": 64, "heads": 8, "kv_heads": 3}, "3 key heads for 8 heads"),
        ({"width": 64, "heads": -4}, "at least 1"),
        ({"width": 64, "heads": 4, "head_width": 0}, "at least 1"),
    ],
)
def test_heads_that_do_not_divide_are_refused(arguments, words, as_a_user):
    with pytest.raises(ArgumentError, match=words):
        MultiHeadAttention(**arguments)


@pytest.mark.parametrize("shape", [(12,), (2, 3, 5, 12)])
def test_other_numbers_of_axes_are_refused(shape, as_a_user):
    with pytest.raises(ArgumentError, match=r"\(tokens, width\) or \(batch, tokens, width\)"):
        MultiHeadAttention(12, 3)(torch.zeros(shape))


def test_rotated_heads_depend_on_distances_only():
    layer = MultiHeadAttention(16, 4).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    near, far = (rotary(torch.arange(start, start + 7), 4) for start in (0, 900))
    torch.testing.assert_close(layer(x, rotary=near), layer(x, rotary=far), atol=1e-5, rtol=0)
    assert not torch.allclose(layer(x, rotary=near), layer(x), atol=1e-3)
