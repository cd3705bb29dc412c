"""Random attention inputs of all kinds and types, and their weight maps in NumPy."""

import math

import numpy as np
import oracle
import torch
from hypothesis import strategies as st

from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Causal, Dense, Padding, Window

OFFSETS = [Causal(offset) for offset in range(-3, 4)]
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@st.composite
def random_inputs(draw):
    """Draw `AttentionInputs` of any kind and type, with their full map in float64."""
    G, r = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    N, M, d = draw(st.integers(1, 13)), draw(st.integers(1, 13)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    dtype = draw(st.sampled_from(TYPES))

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    query, key = random(G * r, N, d), random(G, M, d)
    table = torch.rand(G * r, N, M, generator=generator) < 0.7
    kinds = {
        "none": None,
        "causal": Causal(),
        "offset": draw(st.sampled_from(OFFSETS)),
        "window": Causal() & Window(draw(st.integers(1, 5))),
        "both sides": Window(draw(st.integers(1, 4))),
        "padding": Causal() & Padding(torch.rand(M, generator=generator) < 0.7),
        "table": Dense(table[:1]),
        "tables": Causal() & Dense(table),
    }
    mask = kinds[draw(st.sampled_from(list(kinds)))]
    bias = draw(st.sampled_from([None, random(N, M), random(G * r, 1, M), random(G * r, N, M)]))
    if bias is not None and draw(st.booleans()):
        bias[..., 0] = -math.inf
    softcap = draw(st.sampled_from([None, 1.5]))
    sinks = draw(st.sampled_from([None, random(G * r)]))
    inputs = AttentionInputs(query, key, 0.7, mask, bias, softcap, sinks)
    return inputs, full_map(inputs)


def all_scores(inputs):
    """Return the scores after scale, softcap, bias and mask, with the sink as the last column."""
    H, N, _ = inputs.shape
    key = np.repeat(oracle.numpy(inputs.key), H // len(inputs.key), axis=0)
    scores = inputs.scale * oracle.numpy(inputs.query) @ key.transpose(0, 2, 1)
    if inputs.softcap:
        scores = inputs.softcap * np.tanh(scores / inputs.softcap)
    if inputs.bias is not None:
        scores = scores + oracle.numpy(inputs.bias)
    if inputs.mask is not None:
        scores = np.where(inputs.mask.crop(inputs.shape).numpy(), scores, -math.inf)
    if inputs.sinks is not None:
        sink = np.broadcast_to(oracle.numpy(inputs.sinks)[:, None, None], (H, N, 1))
        scores = np.concatenate([scores, sink], axis=-1)
    return scores


def full_map(inputs):
    """Return the weights without the column of the sink, and which rows may attend to a key."""
    scores, M = all_scores(inputs), inputs.shape[-1]
    nonempty = (scores[..., :M] > -math.inf).any(-1)
    highest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(highest > -math.inf, highest, 0.0))
    shares = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
    return np.where(nonempty[..., None], shares[..., :M], 0.0), nonempty


def log_sum_exps(inputs):
    """Return the log-sum-exp of each row with its sink; −inf for a fully masked row."""
    scores, (_, nonempty) = all_scores(inputs), full_map(inputs)
    highest = np.where(nonempty, scores.max(-1), 0.0)
    with np.errstate(divide="ignore"):
        sums = highest + np.log(np.exp(scores - highest[..., None]).sum(-1))
    return np.where(nonempty, sums, -math.inf)


def rounding(inputs, where_float64=1e-12):
    """Return the allowed error; types narrower than float64 are computed in float32."""
    return where_float64 if inputs.query.dtype == torch.float64 else 2e-6


def allowed_pairs(inputs):
    """Return the pairs that the mask allows, (H, N, M)."""
    allowed = np.ones(1, bool) if inputs.mask is None else inputs.mask.crop(inputs.shape).numpy()
    return np.broadcast_to(allowed, inputs.shape)
