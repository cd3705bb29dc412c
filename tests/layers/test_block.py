import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import nn

from heedful.layers import MultiHeadAttention, PostNormBlock, PreNormBlock, feed_forward

FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def array(tensor):
    return tensor.detach().numpy()


GATED = {
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": FORMULAS["gelu"],
    "reglu": FORMULAS["relu"],
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", [*FORMULAS, *GATED])
def test_feed_forward_equals_its_formula(name, bias):
    layer = feed_forward(5, 11, name, bias=bias).double()
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    added = [array(part.bias) if bias else 0 for part in (layer.enter, layer.output)]
    hidden = array(x) @ array(layer.enter.weight).T + added[0]
    if name in GATED:
        gate, up = np.split(hidden, 2, axis=-1)
        hidden = GATED[name](gate) * up
    else:
        hidden = FORMULAS[name](hidden)
    expected = hidden @ array(layer.output.weight).T + added[1]
    np.testing.assert_allclose(array(layer(x)), expected, atol=1e-12)


@pytest.mark.parametrize(("order", "norm_first"), [(PreNormBlock, True), (PostNormBlock, False)])
def test_blocks_equal_torchs_encoder_layer(order, norm_first):
    attend = MultiHeadAttention(12, 3, bias=True)
    ours = order(attend, feed_forward(12, 31, "relu", True), lambda: nn.LayerNorm(12), 0.0)
    reference = nn.TransformerEncoderLayer(
        12, 3, 31, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    pairs = [
        (reference.self_attn.in_proj_weight, attend.projection.weight),
        (reference.self_attn.in_proj_bias, attend.projection.bias),
        (reference.self_attn.out_proj.weight, attend.output.weight),
        (reference.self_attn.out_proj.bias, attend.output.bias),
        (reference.linear1.weight, ours.feed.enter.weight),
        (reference.linear1.bias, ours.feed.enter.bias),
        (reference.linear2.weight, ours.feed.output.weight),
        (reference.linear2.bias, ours.feed.output.bias),
    ]
    with torch.no_grad():
        for norm in (reference.norm1, reference.norm2, ours.attend_norm, ours.feed_norm):
            norm.weight.copy_(torch.linspace(0.5, 1.5, 12))
        for target, source in pairs:
            target.copy_(source)
    x = torch.randn(2, 7, 12)
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = reference(x, src_mask=causal)
    torch.testing.assert_close(ours(x, causal=True), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.attention_input(x), ours.attend_norm(x) if norm_first else x)
