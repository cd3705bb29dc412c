import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from heedful.explain import explain_gpt
from heedful.layers import ShortConvolution
from heedful.models import GPT, GPTConfig


def random_layer(width, reach):
    layer = ShortConvolution(width, reach).double()
    for weight in layer.weights:
        nn.init.normal_(weight)
    return layer


def model(reach):
    config = GPTConfig(
        vocabulary=23, context_length=16, width=12, layers=2, heads=3, convolution=reach
    )
    gpt = GPT(config).eval()
    for weight in gpt.convolution.weights:
        nn.init.normal_(weight)
    return gpt


@given(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99)
)
def test_each_token_gets_a_weighted_sum_of_previous_tokens(batch, tokens, width, reach, seed):
    torch.manual_seed(seed)
    layer = random_layer(width, reach)
    x = torch.randn(batch, tokens, width, dtype=torch.float64)
    keep = torch.rand(batch, tokens) < 0.7
    numbers = x.numpy()
    expected, masked = numbers.copy(), numbers.copy()
    for b, n in np.ndindex(batch, tokens):
        for back in range(1, min(n, reach) + 1):
            weight = layer.weights[back - 1].detach().numpy()
            expected[b, n] += weight * numbers[b, n - back]
            masked[b, n] += weight * numbers[b, n - back] * keep[b, n - back].item()
    np.testing.assert_allclose(layer(x).detach(), expected, atol=1e-12)
    np.testing.assert_allclose(layer(x, keep).detach(), masked, atol=1e-12)


def test_gradients_equal_finite_differences():
    layer, x = random_layer(4, 2), torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.weights))


def test_padding_before_a_text_changes_nothing_with_or_without_a_cache():
    gpt, ids = model(3), torch.randint(23, (2, 9))
    full = gpt(ids).logits
    padded = torch.cat([torch.randint(23, (2, 2)), ids], 1)
    keep = torch.ones(2, 11, dtype=torch.bool)
    keep[:, :2] = False
    close = {"atol": 1e-5, "rtol": 0}
    torch.testing.assert_close(gpt(padded, keep=keep).logits[:, 2:], full, **close)
    cache = gpt.new_cache(2, capacity=5)
    gpt(padded[:, :4], keep=keep[:, :4], cache=cache)
    cache.grow(11)
    later = gpt(padded[:, 4:], keep=keep, cache=cache).logits
    torch.testing.assert_close(later, full[:, 2:], **close)
    cache.cut(7)  # then the same tokens again
    again = gpt(padded[:, 7:], keep=keep, cache=cache).logits
    torch.testing.assert_close(again, full[:, 5:], **close)


def test_explain_shows_the_convolution():
    gpt, ids = model(2), torch.tensor([[4, 9, 1, 7]])
    section, *_ = explain_gpt(gpt, ids, pieces=lambda ids: [f"<{id}>" for id in ids]).sections
    added, total = section.stages[-2:]
    x = gpt.tokens(ids)[0].detach().numpy()
    first, second = (weight.detach().numpy() for weight in gpt.convolution.weights)
    expected = np.zeros_like(x)
    expected[1:] += first * x[:-1]
    expected[2:] += second * x[:-2]
    np.testing.assert_allclose(added.numbers(), expected, atol=1e-6)
    np.testing.assert_allclose(total.numbers(), x + expected, atol=1e-6)
    terms = added.number_formula(0, 3, 5)
    np.testing.assert_allclose(terms.numbers, [x[2, 5], first[5], x[1, 5], second[5]], atol=1e-6)
    assert added.number_formula(0, 0, 5).numbers == ()
    assert not added.numbers()[0].signbit().any()  # the page would show −0.0000
    torch.testing.assert_close(total.numbers(), gpt.hidden_states(ids)[0][0], atol=1e-6, rtol=0)
