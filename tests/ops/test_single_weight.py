"""One weight taken apart, beside the same steps in NumPy and float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import numpy
from random_maps import all_scores, causes, choices, log_sum_exps, rounding

from heedful.errors import ArgumentError
from heedful.ops.inputs import AttentionInputs
from heedful.ops.single_weight import one_weight


@settings(max_examples=50)
@given(made=causes(), place=st.tuples(*[st.integers(0, 99)] * 3))
def test_every_step_equals_its_formula(made, place):
    of, (map_, seen) = made
    head, query, key = (at % size for at, size in zip(place, of.shape, strict=True))
    found, close = one_weight(of, head, query, key), {"atol": 8 * rounding(of), "rtol": 1e-5}
    asked = numpy(of.query)[head, query]
    offered = numpy(of.key)[head // (len(of.query) // len(of.key)), key]
    np.testing.assert_allclose(found.query, asked, **close)
    np.testing.assert_allclose(found.key, offered, **close)
    np.testing.assert_allclose(found.products, asked * offered, **close)
    product = float(asked @ offered)
    capped = scaled = of.scale * product
    if of.softcap:
        capped = of.softcap * math.tanh(scaled / of.softcap)
    bias = 0.0 if of.bias is None else np.broadcast_to(numpy(of.bias), of.shape)[head, query, key]
    steps = [found.product, found.scaled, found.capped, found.bias]
    np.testing.assert_allclose(steps, [product, scaled, capped, bias], **close)
    hides = not choices(of)[head, query, key] or bias == -math.inf
    assert (found.score == -math.inf) == hides
    if not hides:
        np.testing.assert_allclose(found.score, capped + bias, **close)
    np.testing.assert_allclose(found.scores, all_scores(of)[head, query, : of.shape[2]], **close)
    np.testing.assert_allclose(found.log_sum_exp, log_sum_exps(of)[head, query], **close)
    np.testing.assert_allclose(found.weight, map_[head, query, key], **close)
    if hides or not seen[head, query]:
        assert found.weight == 0
    if of.sinks is None:
        assert found.sink is None
    else:
        np.testing.assert_allclose(found.sink, numpy(of.sinks)[head], **close)


@pytest.mark.parametrize("place", [(2, 0, 0), (0, 3, 0), (0, 0, 5), (-1, 0, 0), (0, 0, -1)])
def test_a_place_outside_the_map_is_refused(place):
    of = AttentionInputs(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), 1.0)
    with pytest.raises(ArgumentError, match=r"(head|query|key) -?\d; expected 0 to \d"):
        one_weight(of, *place)
