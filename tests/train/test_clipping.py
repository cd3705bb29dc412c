"""Query–key clipping beside its definition in NumPy, and the largest scores that it rests on."""

import dataclasses

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import all_scores, causes

from heedful.layers import CrossAttention, MultiHeadAttention
from heedful.ops.arguments import Arguments
from heedful.ops.largest_scores import largest_scores
from heedful.ops.masks import Causal
from heedful.train.clipping import LogitClipping

LIMIT = 2.0


@settings(max_examples=80)
@given(made=causes(), limit=st.floats(-3, 3), told=st.booleans())
def test_largest_scores_are_their_definition(made, limit, told):
    of, _ = made
    of = dataclasses.replace(of) if dataclasses.is_dataclass(of) else of
    of = of._replace(softcap=None, sinks=None)
    scores = all_scores(of)
    value = torch.zeros(1, *of.key.shape, dtype=of.query.dtype)
    arguments = Arguments(
        of.query[None], of.key[None], value, of.mask, of.bias, of.scale, 0.0, (1, *of.shape)
    )
    with np.errstate(divide="ignore"):
        sums = torch.from_numpy(np.log(np.exp(scores).sum(-1)))[None]
        sums = sums.masked_fill(sums == -torch.inf, torch.nan)  # as some kernels have it
    found = largest_scores(arguments, limit, sums if told else None).numpy()
    expected = scores.max((1, 2))
    known = (expected > limit) | (not told)
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-5, atol=1e-5)
    assert (found[~known] <= limit).all() or np.allclose(found, expected, atol=1e-5)


def layer_of(kind):
    torch.manual_seed(3)
    if kind == "cross":
        return CrossAttention(12, 10, heads=3, bias=True)
    options = {"plain": {"bias": True}, "grouped": {"kv_heads": 1}, "normed": {"qk_norm": True}}
    return MultiHeadAttention(12, 3, **options[kind])


def logits(layer, kind, x, memory):
    """The scaled products of all heads in NumPy float64, hidden ones −inf: (B, H, N, M)."""
    width = layer.head_width

    def heads(product, given, start, count):
        weight = oracle.numpy(product.weight)[start : start + count * width]
        made = oracle.numpy(given) @ weight.T
        if product.bias is not None:
            made = made + oracle.numpy(product.bias)[start : start + count * width]
        return made.reshape(*made.shape[:2], count, width).transpose(0, 2, 1, 3)

    if kind == "cross":
        query, key = heads(layer.query, x, 0, 3), heads(layer.memory, memory, 0, 3)
        return query @ key.swapaxes(-1, -2) / np.sqrt(width)
    query = heads(layer.projection, x, 0, 3)
    key = heads(layer.projection, x, 3 * width, layer.kv_heads)
    if kind == "normed":
        query, key = (
            of / np.sqrt((of**2).mean(-1, keepdims=True) + 1e-5) * oracle.numpy(norm.weight)
            for of, norm in ((query, layer.query_norm), (key, layer.key_norm))
        )
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(width)
    return np.where(np.tri(scores.shape[-1]) > 0, scores, -np.inf)


@pytest.mark.parametrize("kind", ["plain", "grouped", "normed", "cross"])
def test_logits_above_the_limit_come_to_it(kind):
    """Two passes; each head by its own largest, but all of a layer together with QK-norm."""
    layer = layer_of(kind)
    with torch.no_grad():
        if kind == "normed":
            layer.query_norm.weight.uniform_(1.0, 2.0)
        else:
            product = layer.query if kind == "cross" else layer.projection
            product.weight[: layer.head_width] *= 9
    batches = [(torch.randn(2, 5, 12), torch.randn(2, 7, 10)) for _ in range(2)]
    before = [logits(layer, kind, *batch) for batch in batches]
    largest = np.max([scores.max((0, 2, 3)) for scores in before], axis=0)
    assert (largest > LIMIT).any()
    clipping = LogitClipping(torch.nn.ModuleDict({"attend": layer}), LIMIT)
    with clipping.measuring():
        for x, memory in batches:
            layer(x, memory) if kind == "cross" else layer(x, causal=True)
    told = clipping.clip()["attend"]
    assert {*told} == {*np.flatnonzero(largest > LIMIT).tolist()}
    np.testing.assert_allclose([*told.values()], largest[[*told]], rtol=1e-3)
    share = np.minimum(1.0, LIMIT / largest)
    share = share.min(keepdims=True) if kind == "normed" else share
    for batch, scores in zip(batches, before, strict=True):
        after = logits(layer, kind, *batch)
        np.testing.assert_allclose(after, scores * share[:, None, None], atol=1e-5)
    with clipping.measuring():
        layer(*batches[0]) if kind == "cross" else layer(batches[0][0], causal=True)
    assert all(s <= LIMIT * 1.0001 for s in clipping.clip().get("attend", {}).values())


def test_below_the_limit_or_without_one_nothing_is_changed():
    for limit in (0.0, 1e6):
        layer = layer_of("plain")
        before = [parameter.clone() for parameter in layer.parameters()]
        clipping = LogitClipping(layer, limit)
        with clipping.measuring():
            layer(100 * torch.randn(2, 5, 12), causal=True)
        assert clipping.clip() == {}
        assert all(map(torch.equal, before, layer.parameters()))


def test_gradients_are_bit_for_bit_what_they_are_without():
    x, found = torch.randn(2, 5, 12), []
    for limit in (0.0, 1e-3):
        layer = layer_of("plain")
        clipping = LogitClipping(layer, limit)
        with clipping.measuring():
            layer(x, causal=True).square().sum().backward()
        found.append([parameter.grad for parameter in layer.parameters()])
    assert all(map(torch.equal, *found))


def test_masks_of_each_text_count():
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    arguments = Arguments(query, key, key, Causal(), None, 0.5, 0.0, (2, 3, 5, 5))
    scores = 0.5 * np.einsum("bhnd,bhmd->bhnm", query.numpy(), key.numpy())
    expected = np.where(np.tri(5) > 0, scores, -np.inf).max((0, 2, 3))
    np.testing.assert_allclose(largest_scores(arguments), expected, rtol=1e-5)
