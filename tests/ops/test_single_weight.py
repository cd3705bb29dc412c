"""The steps behind a single weight, against NumPy in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import numpy
from random_maps import all_scores, allowed_pairs, log_sum_exps, random_inputs, rounding

from heedful.errors import ArgumentError
from heedful.ops.inputs import AttentionInputs
from heedful.ops.single_weight import one_weight


@settings(max_examples=50)
@given(case=random_inputs(), numbers=st.tuples(*[st.integers(0, 99)] * 3))
def test_every_step_equals_its_formula(case, numbers):
    inputs, (map_, nonempty) = case
    head, query, key = (number % size for number, size in zip(numbers, inputs.shape, strict=True))
    result = one_weight(inputs, head, query, key)
    close = {"atol": 8 * rounding(inputs), "rtol": 1e-5}
    q = numpy(inputs.query)[head, query]
    k = numpy(inputs.key)[head // (len(inputs.query) // len(inputs.key)), key]
    np.testing.assert_allclose(result.query, q, **close)
    np.testing.assert_allclose(result.key, k, **close)
    np.testing.assert_allclose(result.products, q * k, **close)
    product = float(q @ k)
    capped = scaled = inputs.scale * product
    if inputs.softcap:
        capped = inputs.softcap * math.tanh(scaled / inputs.softcap)
    biases = 0.0 if inputs.bias is None else numpy(inputs.bias)
    bias = np.broadcast_to(biases, inputs.shape)[head, query, key]
    steps = [result.product, result.scaled, result.capped, result.bias]
    np.testing.assert_allclose(steps, [product, scaled, capped, bias], **close)
    is_masked = not allowed_pairs(inputs)[head, query, key] or bias == -math.inf
    assert (result.score == -math.inf) == is_masked
    if not is_masked:
        np.testing.assert_allclose(result.score, capped + bias, **close)
    row = all_scores(inputs)[head, query, : inputs.shape[2]]
    np.testing.assert_allclose(result.scores, row, **close)
    np.testing.assert_allclose(result.log_sum_exp, log_sum_exps(inputs)[head, query], **close)
    np.testing.assert_allclose(result.weight, map_[head, query, key], **close)
    if is_masked or not nonempty[head, query]:
        assert result.weight == 0
    if inputs.sinks is None:
        assert result.sink is None
    else:
        np.testing.assert_allclose(result.sink, numpy(inputs.sinks)[head], **close)


@pytest.mark.parametrize("index", [(2, 0, 0), (0, 3, 0), (0, 0, 5), (-1, 0, 0), (0, 0, -1)])
def test_an_index_outside_the_map_is_refused(index):
    inputs = AttentionInputs(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), 1.0)
    with pytest.raises(ArgumentError, match=r"(head|query|key) -?\d; expected 0 to \d"):
        one_weight(inputs, *index)
