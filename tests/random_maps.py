"""Random causes of maps, of any kind and type, and the maps that they stand for, in NumPy."""

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
def causes(draw):
    """AttentionInputs of any kind and type, and the whole map that they stand for, in float64."""
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
    made = AttentionInputs(query, key, 0.7, mask, bias, softcap, sinks)
    return made, whole_map(made)


def all_scores(of):
    """The scores in NumPy: scale, softcap, bias, mask, the sink's column at the end."""
    H, N, _ = of.shape
    key = np.repeat(oracle.numpy(of.key), H // len(of.key), axis=0)
    scores = of.scale * oracle.numpy(of.query) @ key.transpose(0, 2, 1)
    if of.softcap:
        scores = of.softcap * np.tanh(scores / of.softcap)
    if of.bias is not None:
        scores = scores + oracle.numpy(of.bias)
    if of.mask is not None:
        scores = np.where(of.mask.crop(of.shape).numpy(), scores, -math.inf)
    if of.sinks is not None:
        sink = np.broadcast_to(oracle.numpy(of.sinks)[:, None, None], (H, N, 1))
        scores = np.concatenate([scores, sink], axis=-1)
    return scores


def whole_map(of):
    """The map: a softmax, of which the sink's column goes; and which rows see anything."""
    scores, M = all_scores(of), of.shape[-1]
    seen = (scores[..., :M] > -math.inf).any(-1)
    highest = scores.max(-1, keepdims=True)
    raised = np.exp(scores - np.where(highest > -math.inf, highest, 0.0))
    shares = raised / np.maximum(raised.sum(-1, keepdims=True), 1e-300)
    return np.where(seen[..., None], shares[..., :M], 0.0), seen


def log_sum_exps(of):
    """Of each row, sink included; −inf where it sees nothing."""
    scores, (_, seen) = all_scores(of), whole_map(of)
    highest = np.where(seen, scores.max(-1), 0.0)
    with np.errstate(divide="ignore"):
        sums = highest + np.log(np.exp(scores - highest[..., None]).sum(-1))
    return np.where(seen, sums, -math.inf)


def rounding(of, where_float64=1e-12):
    """What may be off: narrower types than float64 are computed in float32."""
    return where_float64 if of.query.dtype == torch.float64 else 2e-6


def choices(of):
    """(H, N, M), what the mask allows."""
    allowed = np.ones(of.shape, bool) if of.mask is None else of.mask.crop(of.shape).numpy()
    return np.broadcast_to(allowed, of.shape)
