"""The layers with one head, against loops in NumPy."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.layers import CausalAttention, SelfAttention, SimpleSelfAttention
from heedful.text.example_texts import EMBEDDINGS

LAYERS = {
    "simple": lambda width, inner: SimpleSelfAttention(),
    "trainable": lambda width, inner: SelfAttention(width, inner, bias=True),
    "projected": lambda width, inner: SelfAttention(width, inner, project_back=True, residual=True),
    "causal": CausalAttention,
}


def by_numpy(layer, x, causal):
    """Compute the layer in NumPy from its parameters."""
    weights = {name: oracle.numpy(p) for name, p in layer.named_parameters()}

    def project(name, x):
        if f"{name}.weight" not in weights:
            return x
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    query, key, value = (torch.from_numpy(project(n, x)) for n in ("query", "key", "value"))
    allowed = np.tri(x.shape[-2], dtype=bool) if causal else None
    scale = 1.0 if type(layer) is SimpleSelfAttention else None
    context, shares = oracle.attention(query, key, value, allowed, scale=scale)
    output = project("output", context)
    return (x + output if getattr(layer, "residual", False) else output), shares


@settings(max_examples=40)
@given(
    kind=st.sampled_from(list(LAYERS)),
    lead=st.sampled_from([(), (1,), (3,)]),
    tokens=st.integers(1, 11),
    width=st.integers(1, 7),
    inner=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_each_layer_equals_loops_in_numpy(kind, lead, tokens, width, inner, seed):
    torch.manual_seed(seed)
    layer = LAYERS[kind](width, inner).double()
    x = torch.randn(*lead, tokens, width, dtype=torch.float64)
    output, weights = by_numpy(layer, x.numpy(), causal=kind == "causal")
    np.testing.assert_allclose(layer(x).detach(), output, atol=1e-11)
    np.testing.assert_allclose(layer.steps(x).weights.detach(), weights, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients(kind):
    layer = LAYERS[kind](5, 3).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_document_002():
    """The last context vectors that document 002 (after Raschka) prints, to four decimals."""
    context = SimpleSelfAttention()(torch.tensor(EMBEDDINGS))
    printed = [[0.4421, 0.5931, 0.5790], [0.4419, 0.6515, 0.5683],
               [0.4431, 0.6496, 0.5671], [0.4304, 0.6298, 0.5510],
               [0.4671, 0.5910, 0.5266], [0.4177, 0.6503, 0.5645]]  # fmt: skip
    np.testing.assert_allclose(context, printed, atol=5.1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_single_head_equals_torch(causal):
    layer = SelfAttention(6, bias=True, project_back=True).double()
    reference = torch.nn.MultiheadAttention(6, 1, batch_first=True).double()
    parts = [getattr(layer, name) for name in ("query", "key", "value")]
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        reference.out_proj.load_state_dict(layer.output.state_dict())
    x = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    outputs = [layer(x, causal=causal), reference(x, x, x, attn_mask=forbidden)[0]]
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=0)
    direction = torch.randn_like(x)
    gradients = [torch.autograd.grad(output, x, direction)[0] for output in outputs]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_wrong_arguments_are_refused(as_a_user):
    for call, words in [
        (lambda: SelfAttention(5)(torch.zeros(3, 6)), r"x of width 6; expected .* 5"),
        (lambda: SelfAttention(5)(torch.zeros(5)), r"x of shape \(5,\)"),
        (lambda: SelfAttention(0), "at least 1 of each"),
        (lambda: SelfAttention(5, -1), "at least 1 of each"),
        (lambda: SelfAttention(4, dropout=1.5), r"dropout=1\.5"),
        (lambda: SelfAttention(5, 3, residual=True), r"widths 5 and 3"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            call()
