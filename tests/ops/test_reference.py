import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.ops.reference import (
    attention_in_loops,
    attention_in_products,
    dot_product,
    masked_softmax,
    renormalized_softmax,
    softmax,
)
from heedful.text.example_texts import EMBEDDINGS

# Document 002 (after Raschka) prints these numbers for "Your journey starts with one step"
WORDS = torch.tensor(EMBEDDINGS)
SCORES = [
    [0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310],
    [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865],
    [0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605],
    [0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565],
    [0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935],
    [0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450],
]
WEIGHTS = [
    [0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452],
    [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],
    [0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565],
    [0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720],
    [0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295],
    [0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896],
]
CONTEXT = [
    [0.4421, 0.5931, 0.5790],
    [0.4419, 0.6515, 0.5683],
    [0.4431, 0.6496, 0.5671],
    [0.4304, 0.6298, 0.5510],
    [0.4671, 0.5910, 0.5266],
    [0.4177, 0.6503, 0.5645],
]


def assert_printed(got, printed):
    """Check that all printed decimals are equal."""
    got = torch.as_tensor(got).double().round(decimals=4)
    torch.testing.assert_close(got, torch.tensor(printed).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("words", [WORDS, WORDS.numpy()], ids=["tensors", "arrays"])
def test_document_002_for_all_words(words):
    steps = heedful.steps(words, words, words, scale=1.0)
    assert_printed(steps.scores, SCORES)
    direct = heedful.attention(words, words, words, scale=1.0, return_weights=True)
    in_loops, in_products = (
        attend(words, words, words, scale=1.0)
        for attend in (attention_in_loops, attention_in_products)
    )
    for context, weights in ((steps.context, steps.weights), direct, in_loops, in_products):
        assert_printed(weights, WEIGHTS)
        assert_printed(context, CONTEXT)


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=13))
@settings(max_examples=100)
def test_softmax_equals_scipy(scores):
    got = softmax(torch.tensor(scores, dtype=torch.float64))
    np.testing.assert_allclose(got, scipy.special.softmax(scores), atol=1e-12)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 1000))
@settings(max_examples=100)
def test_both_masked_softmaxes_and_their_gradients_are_equal(N, M, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, N, M, generator=generator, dtype=torch.float64).requires_grad_()
    mask = torch.rand(3, N, M, generator=generator) < 0.5
    first, second = renormalized_softmax(scores, mask), masked_softmax(scores, mask)
    torch.testing.assert_close(first, second, atol=1e-12, rtol=0)
    is_nonempty = mask.any(-1)
    assert (second[~mask] == 0).all()
    torch.testing.assert_close(second.sum(-1), is_nonempty.double())
    direction = torch.randn(3, N, M, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad(result, scores, direction)[0] for result in (first, second)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)
    assert (gradients[1][~is_nonempty] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("function", [attention_in_loops, attention_in_products])
def test_the_type_is_unchanged(function, dtype):
    query, key = torch.randn(3, 5).to(dtype), torch.randn(7, 5).to(dtype)
    mask, bias = torch.rand(3, 7) < 0.5, torch.ones(3, 7).to(dtype)
    context, weights = function(query, key, key, mask=mask, bias=bias)
    assert context.dtype == weights.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_give_arrays_of_their_type(dtype):
    random = np.random.default_rng(3)
    query, key, value = (random.standard_normal((n, 5)).astype(dtype) for n in (3, 7, 7))
    mask, bias = np.tri(3, 7, 4, dtype=bool), random.standard_normal((3, 7)).astype(dtype)
    expected = heedful.steps(query, key, value, mask=mask, bias=bias)
    close = {"atol": 1e-12 if dtype is np.float64 else 1e-6}
    for function in (attention_in_loops, attention_in_products):
        context, weights = function(query, key, value, mask=mask, bias=bias)
        assert type(context) is type(weights) is np.ndarray
        assert context.dtype == weights.dtype == dtype
        np.testing.assert_allclose(context, expected.context, **close)
        np.testing.assert_allclose(weights, expected.weights, **close)
    four = [array[None, None] for array in (query, key, value)]
    context, _ = attention_in_products(*four, mask=mask, bias=bias)
    np.testing.assert_allclose(context[0, 0], expected.context, **close)
    product = dot_product(query[0], key[0])
    assert type(product) is dtype  # a NumPy scalar


def test_invalid_inputs_are_refused(as_a_user):
    with pytest.raises(ValueError, match="shorter"):
        dot_product(torch.ones(3), torch.ones(2))
    with pytest.raises(heedful.errors.ArgumentError, match=r"b of type Tensor.*all as arrays"):
        dot_product(np.ones(3), torch.ones(3))
    with pytest.raises(heedful.errors.ArgumentError, match=r"scores array of type int64"):
        softmax(np.array([1, 2]))
