"""The path for dropout on CPUs: with nothing dropped it is attention, gradients too."""

import pytest
import torch

import heedful
from heedful.ops import dropping_out
from heedful.ops.masks import Causal, Padding, Window

KEEP = torch.tensor([[True] * 7, [True, False, True, True, False, False, True]])
CASES = {
    "nothing": {},
    "causal": {"causal": True},
    "offset": {"mask": Causal(-2)},  # the first rows may attend to nothing
    "window": {"mask": Causal() & Window(3)},
    "padding": {"mask": Padding(KEEP), "causal": True},
    "bias": {"bias": torch.linspace(-1, 1, 35).view(5, 7), "causal": True, "scale": 0.3},
    "bias of a head": {"bias": torch.linspace(-1, 1, 4 * 35).view(4, 5, 7)},
    "dense": {"mask": torch.arange(35).view(5, 7) % 3 > 0},
}


@pytest.fixture
def nothing_dropped(monkeypatch):
    """`torch.nn.functional.dropout` that keeps everything, and counts its calls."""
    calls = []

    def keep(weights, probability):
        calls.append(probability)
        return weights

    monkeypatch.setattr(dropping_out.F, "dropout", keep)
    return calls


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("case", CASES)
def test_with_nothing_dropped_it_is_attention(nothing_dropped, case, kv_heads):
    generator = torch.Generator().manual_seed(4)

    def make(heads, *shape):
        return torch.randn(2, heads, *shape, generator=generator, dtype=torch.float64)

    tensors = make(4, 5, 6), make(kv_heads, 7, 6), make(kv_heads, 7, 3)
    direction = make(4, 5, 3)
    found = []
    for dropout in (0.0, 0.25):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        context = heedful.attention(*inputs, dropout=dropout, **CASES[case])
        context.backward(direction)
        found.append([context, *(tensor.grad for tensor in inputs)])
    assert nothing_dropped == [0.25]
    torch.testing.assert_close(*found, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_leading_axes_and_types(nothing_dropped, lead, dtype):
    torch.manual_seed(5)
    tensors = [torch.randn(*lead, n, 4).to(dtype) for n in (5, 7, 7)]
    plain, other = (
        heedful.attention(*tensors, causal=True, dropout=dropout) for dropout in (0.0, 0.25)
    )
    assert nothing_dropped == [0.25]
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-6}[dtype]
    torch.testing.assert_close(other, plain, atol=tolerance, rtol=tolerance)


def test_a_gradient_reaches_the_bias():
    query = torch.randn(5, 4)
    bias = torch.zeros(5, 5, requires_grad=True)
    heedful.attention(query, query, query, bias=bias, dropout=0.5).sum().backward()
    assert bias.grad.abs().sum() > 0


def test_a_mask_made_in_inference_mode_serves_in_training():
    dropping_out._causal.cache_clear()
    query = torch.randn(5, 4)
    with torch.inference_mode():
        heedful.attention(query, query, query, causal=True, dropout=0.5)
    query.requires_grad_()
    heedful.attention(query, query, query, causal=True, dropout=0.5).sum().backward()
    assert query.grad is not None
