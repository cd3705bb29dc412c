import numpy as np
import pytest
import torch
from scipy.special import erf

from heedful.layers import feed_forward

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
