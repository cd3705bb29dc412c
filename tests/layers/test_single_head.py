"""The layers with one head, against loops in NumPy."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.layers import CausalAttention, SelfAttention, SimpleSelfAttention

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
