"""A trained model's own numbers: one of its layers, on a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from heedful.explain.attending import PURPOSES, Causes, attend, mix
from heedful.explain.stages import Explanation, Stage, check_index, held
from heedful.layers import MultiHeadAttention, PreNormBlock
from heedful.models.gpt import GPT


def explain_model(
    model: GPT, ids: Tensor, pieces: Sequence[str], *, layer: int = 0, head: int = 0
) -> Explanation:
    """Take a text's tokens to one layer of a GPT, and through its attention.

    Args:
        model: in evaluation mode, on any device.
        ids: the tokens' ids, (1, N), on the same device.
        pieces: the tokens as text, N of them.
        layer: from 0.
        head: the head to look at, from 0.

    Raises:
        ArgumentError: a layer or head that the model has not, more tokens than its context.
    """
    config = model.config
    check_index("layer", layer, config.layers)
    check_index("head", head, config.heads)
    block = cast(PreNormBlock, model.blocks[layer])
    with torch.inference_mode():
        states = model.hidden_states(ids)[layer]
        reads = block.attended(states)
        stages = _embed(model, ids)
        stages += _arrive(model, states[0], reads[0], stages[-1].name, layer)
        stages += _attend(model, block.attend, reads, stages[-1])
    return Explanation(
        title=f"layer {layer} of {config.layers}, a GPT of width {config.width}",
        tokens=tuple(pieces),
        memory=(),
        stages=tuple(stages),
        notes=("The vectors and weights are those that the model has learned.",),
        heads=config.heads,
        head=head,
    )


def _embed(model: GPT, ids: Tensor) -> list[Stage]:
    x = model.tokens(ids)[0]
    width = model.config.width
    found = [
        held("embeddings", x, "embeddings = table[token]",
             f"Each token's row of the model's table: {width} numbers.", "tokens")
    ]  # fmt: skip
    if model.config.positions != "rotary":
        where = model.positions[: len(x)].detach()
        found += [
            held("positions", where, "positions = table[place]",
                 f"The model's {model.config.positions} vectors for each token's place.", "tokens"),
            held("input", x + where, "input = embeddings + positions",
                 "The vector of the token and that of its place, added.", "tokens"),
        ]  # fmt: skip
    return found


def _arrive(model: GPT, states: Tensor, reads: Tensor, before: str, layer: int) -> list[Stage]:
    """What comes to the layer, and what its attention reads of it."""
    found = []
    if layer:
        said, before = f"{layer} layer" + ("s" if layer > 1 else ""), "states"
        found.append(
            held("states", states, f"states = output of layer {layer - 1}",
                 f"The tokens' vectors after {said}: each has gathered from those it looked at.",
                 "tokens")
        )  # fmt: skip
    if model.config.norm_order == "pre":
        found.append(
            held("normed", reads, f"normed = norm({before})",
                 "Brought to one size by the layer's norm; this is what attention reads.", "tokens")
        )  # fmt: skip
    return found


def _attend(model: GPT, attention: MultiHeadAttention, reads: Tensor, source: Stage) -> list[Stage]:
    count = reads.shape[1]
    rotary = None
    if model.config.positions == "rotary":
        rotary = (model.cosines[:count], model.sines[:count])
    heads = attention.project(reads, rotary=rotary)
    tables = _tables(attention)
    vectors = [
        _vectors(name, tensor[0], source, table, model)
        for name, tensor, table in zip(heads._fields, heads, tables, strict=True)
    ]
    found = attend(Causes(heads, causal=True, scale=None), vectors)
    output = attention(reads, causal=True, rotary=rotary)[0]
    return [*tables, *vectors, *found, *mix(found[-1], attention.output, output)]


def _tables(attention: MultiHeadAttention) -> list[Stage]:
    """The weights of the projections, cut into heads: (H, width, d), (G, width, d) twice."""
    each = (
        attention.projection.weight.detach()
        .unflatten(0, (-1, attention.head_width))
        .transpose(1, 2)
    )
    sizes = [attention.heads, attention.kv_heads, attention.kv_heads]
    return [
        held(f"W_{name}", table, "",
             "The weights that make queries, keys and values, as the model has learned them.",
             "width")
        for name, table in zip(PURPOSES, each.split(sizes), strict=True)
    ]  # fmt: skip


def _vectors(name: str, vectors: Tensor, source: Stage, table: Stage, model: GPT) -> Stage:
    """A query, key or value, with all that is done to it beside the product."""
    config = model.config
    made, also, exact = f"{source.name} · {table.name}", [], not config.attention_bias
    if config.attention_bias:
        made += " + bias"
    if name != "value" and config.qk_norm:
        made, exact = f"norm({made})", False
        also.append("brought to one size")
    if name != "value" and config.positions == "rotary":
        made, exact = f"rotate({made})", False
        also.append("turned by the angle of its place")
    if config.kv_heads and config.kv_heads != config.heads and name != "query":
        also.append(f"shared by {config.heads // config.kv_heads} heads")
    sentence = PURPOSES[name] + (f" It is {' and '.join(also)}." if also else "")
    factors = (source, table) if exact else None
    return held(name, vectors, f"{name} = {made}", sentence, "tokens", factors)
