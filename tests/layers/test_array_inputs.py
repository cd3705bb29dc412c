"""Single sequences and NumPy arrays as inputs of every layer."""

import numpy as np
import oracle
import pytest
import scipy.special
import torch

from heedful.errors import ArgumentError
from heedful.layers import (
    CausalAttention,
    CrossAttention,
    KeyValueCache,
    MultiHeadAttention,
    SelfAttention,
    SimpleSelfAttention,
    StackedHeads,
)
from heedful.ops.masks import Padding
from heedful.ops.positions import rotary
from heedful.text.example_texts import EMBEDDINGS

RANDOM = np.random.default_rng(7)
LAYERS = {
    "simple": SimpleSelfAttention,
    "self": lambda: SelfAttention(6, 5, bias=True, project_back=True, residual=True),
    "causal": lambda: CausalAttention(6, 4),
    "stacked": lambda: StackedHeads(6, 3),
    "multihead": lambda: MultiHeadAttention(6, 3, qk_norm=True),
    "cross": lambda: CrossAttention(6, 5, heads=2),
}


def sources(name, *lead):
    """Return the inputs of a layer: tokens, and a memory for cross-attention."""
    x = RANDOM.standard_normal((*lead, 7, 6))
    return (x, RANDOM.standard_normal((*lead, 4, 5))) if name == "cross" else (x,)


@pytest.mark.parametrize("name", LAYERS)
def test_a_single_sequence_equals_a_batch_of_one(name):
    layer = LAYERS[name]().double()
    inputs = [torch.from_numpy(x) for x in sources(name)]
    batch = [x[None] for x in inputs]
    for method in ("forward", "project", "steps"):
        if hasattr(layer, method):
            batched, single = getattr(layer, method)(*batch), getattr(layer, method)(*inputs)
            if method == "forward":
                batched, single = [batched], [single]
            for a, b in zip(batched, single, strict=True):
                torch.testing.assert_close(a[0], b)
    assert layer(*inputs).shape == torch.Size([7, layer(*batch).shape[-1]])


def test_a_single_sequence_with_a_mask_angles_and_a_cache():
    layer, x, angles = MultiHeadAttention(8, 2), torch.randn(5, 8), rotary(torch.arange(5), 4)
    mask = torch.rand(2, 5, 5) > 0.3  # a mask per head
    options = {"rotary": angles, "causal": True}
    single, batched = layer(x, mask=mask, **options), layer(x[None], mask=mask, **options)
    torch.testing.assert_close(single, batched[0])
    cache = KeyValueCache(layers=1, batch=1, kv_heads=2, capacity=5, head_width=4)[0]
    parts = [
        layer(x[n : n + 1], causal=True, rotary=tuple(t[n : n + 1] for t in angles), cache=cache)
        for n in range(5)
    ]
    torch.testing.assert_close(torch.cat(parts), layer(x, **options), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("double", [False, True])
def test_arrays_of_float64_give_arrays_of_float64(name, lead, double):
    """Also with float32 weights, which are converted to float64 for the computation."""
    layer = LAYERS[name]()
    layer = layer.double() if double else layer
    arrays = sources(name, *lead)
    copies = [weight.clone() for weight in layer.parameters()]
    methods = [name for name in ("forward", "project", "steps") if hasattr(layer, name)]
    results = {name: getattr(layer, name)(*arrays) for name in methods}
    for copy, weight in zip(copies, layer.parameters(), strict=True):
        assert torch.equal(copy, weight)  # also the dtype
    layer.double()
    tensors = [torch.from_numpy(x) for x in arrays]
    for method, result in results.items():
        expected = getattr(layer, method)(*tensors)
        if method == "forward":
            result, expected = [result], [expected]
        else:
            assert type(result) is type(expected)
        for array, tensor in zip(result, expected, strict=True):
            assert type(array) is np.ndarray
            assert array.dtype == np.float64
            np.testing.assert_allclose(array, tensor.detach(), atol=1e-12)


def test_the_wider_of_two_types_is_used():
    x = RANDOM.standard_normal((5, 6))
    for weights, array_type, result_type in [
        (torch.float32, np.float16, np.float32),
        (torch.float32, np.float32, np.float32),
        (torch.float64, np.float32, np.float64),
        (torch.bfloat16, np.float16, np.float32),
    ]:
        assert SelfAttention(6, 4).to(weights)(x.astype(array_type)).dtype == result_type


def test_masks_of_arrays_equal_loops_in_numpy():
    layer, x = SimpleSelfAttention(), RANDOM.standard_normal((5, 3))
    mask = RANDOM.random((5, 5)) > 0.4
    mask[2] = False  # may attend to no key
    expected, _ = oracle.attention(*[torch.from_numpy(x)] * 3, mask, scale=1.0)
    np.testing.assert_allclose(layer(x, mask=mask), expected, atol=1e-12)
    keep = np.array([True, True, False, True, False])
    padded = layer(x, mask=Padding(torch.from_numpy(keep)))
    np.testing.assert_allclose(padded[0], layer(x[keep])[0], atol=1e-12)


def document_001(x, query, key, value, output):
    """Compute `self_attention` as in document 001 (Pahwa)."""
    queries, keys, values = x @ query, x @ key, x @ value
    weights = scipy.special.softmax(queries @ keys.T / np.sqrt(keys.shape[-1]), axis=1)
    return weights @ values @ output + x


@pytest.mark.parametrize("value_width", [16, 11])
def test_document_001_with_its_matrices(value_width):
    query, key = RANDOM.random((2, 128, 16))
    value, output = RANDOM.random((128, value_width)), RANDOM.random((value_width, 128))
    x = RANDOM.random((7, 128))
    layer = SelfAttention.from_matrices(query, key, value, output, residual=True)
    expected = document_001(x, query, key, value, output)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-11)
    as_tensors = [torch.from_numpy(matrix) for matrix in (query, key, value, output)]
    tensors = SelfAttention.from_matrices(*as_tensors, residual=True)
    np.testing.assert_allclose(tensors(torch.from_numpy(x)).detach(), expected, rtol=1e-11)
    assert all(weight.requires_grad for weight in tensors.parameters())
    for matrix, projected in zip((query, key), layer.project(x), strict=False):
        np.testing.assert_allclose(x @ matrix, projected, rtol=1e-11)
    matrix = as_tensors[0]
    assert matrix.data_ptr() != tensors.query.weight.data_ptr()  # a copy


def test_causal_attention_from_matrices_without_output():
    query, key, value = RANDOM.random((3, 3, 2))
    x = np.array(EMBEDDINGS)
    allowed = np.tri(6, dtype=bool)
    three = [torch.from_numpy(x @ matrix) for matrix in (query, key, value)]
    layer = CausalAttention.from_matrices(query, key, value)
    assert type(layer) is CausalAttention
    np.testing.assert_allclose(layer(x), oracle.attention(*three, allowed)[0], atol=1e-12)
    assert layer.dropout == 0.0


def test_invalid_matrices_and_inputs(as_a_user):
    W = np.ones((6, 4))
    for matrices, words in [
        ((W, W.T, W), r"key \(4, 6\).*transpose"),
        ((W, W, W, W), r"output \(6, 4\)"),
        ((W, W, W[0]), r"value \(4,\)"),
        ((W, torch.ones(6, 4), W), "key of type Tensor"),
        ((W.astype(int), W, W), r"query array of type int64"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            SelfAttention.from_matrices(*matrices)
    with pytest.raises(ArgumentError, match=r"widths 6 and 4"):
        SelfAttention.from_matrices(W, W, W, residual=True)
    for layer, inputs, words in [
        (CrossAttention(6, 5), (np.ones((3, 6)), torch.ones(4, 5)), r"memory of type Tensor"),
        (CrossAttention(6, 5), (torch.ones(3, 6), np.ones((4, 5))), r"x of type Tensor"),
        (SelfAttention(6), (np.ones((3, 6), int),), r"x array of type int64"),
        (SelfAttention(2), ([[1.0, 2.0]],), r"x of type list"),
        (SelfAttention(6), (np.ones((3, 5)),), r"x of width 5; expected .* 6"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            layer(*inputs)
