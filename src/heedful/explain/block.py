"""The stages of a transformer block: attention and feed-forward, with norms and residual sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from heedful.explain.attention import attention_stages
from heedful.explain.common_stages import activation_stage, linear_stages, norm_stage, sum_stage
from heedful.explain.stage_types import Section, Stage
from heedful.layers import FeedForward, GatedFeedForward, PostNormBlock, PostNormDecoderBlock

NORMED = "Each token's vector, normalised"
WEIGHTS_NOTE = "These weights turn each token's vector into a query, a key and a value."


def block_sections(
    block: Any, source: Stage, layer: int, name: str, memory: Stage | None = None, side: str = "",
    **attending: Any,
) -> list[Section]:  # fmt: skip
    """Return the sections of one block, with all its stages.

    Args:
        block: a block of an encoder or a decoder.
        source: the block's input.
        layer: the number of the block, from 0.
        name: the start of the sections' titles, such as "Block 0 of 4".
        memory: the encoder's output, for a decoder's block.
        side: "encoder" or "decoder", in a model that has both.
        attending: arguments of the block's self-attention, such as `causal`.
    """
    post = isinstance(block, PostNormBlock | PostNormDecoderBlock)
    order = "norm last (post-norm)" if post else "norm first (pre-norm)"
    sections: list[Section] = []

    def add(title: str, part: str, norm: nn.Module, inner: Callable[[Stage], list[Stage]]) -> None:
        previous = sections[-1].stages[-1] if sections else source
        stages: list[Stage] = []
        if not post:
            sentence = f"{NORMED}: the input of {part}."
            stages.append(norm_stage("normed", previous, norm, sentence))
        stages += inner(stages[-1] if stages else previous)
        sentence = f"The residual sum: the output of {part} is added to each token's vector."
        stages.append(sum_stage(f"sum after {part}", [previous, stages[-1]], sentence))
        if post:
            sentence = f"{NORMED} after the sum (Add & Norm in document 004 by Zhang)."
            stages.append(norm_stage("normed", stages[-1], norm, sentence))
        sections.append(Section(f"{name}: {title}, {order}", tuple(stages), part, side, layer))

    attend = functools.partial(attention_stages, weights_note=WEIGHTS_NOTE)
    title = "masked self-attention" if attending.get("causal") else "self-attention"
    add(title, "attention", block.attend_norm,
        lambda inputs: attend(block.attend, inputs, **attending))  # fmt: skip
    if memory is not None:
        add("cross-attention", "cross-attention", block.cross_norm,
            lambda inputs: attend(block.cross, inputs, memory))  # fmt: skip
    add("feed-forward", "feed-forward", block.feed_norm,
        lambda inputs: _feed_forward(block.feed, inputs))  # fmt: skip
    return sections


def deferred_block(
    block: Any, source: Stage, memory: Stage | None, **attending: Any
) -> Callable[[], Stage]:
    """Return a function that returns a block's last stage; its inputs lead to all of its stages."""

    @functools.cache
    @torch.inference_mode()
    def last_stage() -> Stage:
        return block_sections(block, source, 0, "", memory, **attending)[-1].stages[-1]

    return last_stage


def _feed_forward(layer: FeedForward | GatedFeedForward, source: Stage) -> list[Stage]:
    """Return the stages of the feed-forward layer: first layer, activation, second layer."""
    width, hidden = source.shape[-1], layer.output.in_features
    inner = f"Each token's vector is widened separately, from {width:,} to {hidden:,} numbers."
    if isinstance(layer, GatedFeedForward):
        texts = ("The weights of the gate.", inner)
        stages = linear_stages("gate", source, layer.enter, "W_gate", texts, slice(0, hidden))
        texts = ("The weights of the vectors that the gate multiplies.", inner)
        stages += linear_stages("up", source, layer.enter, "W_up", texts, slice(hidden, None))
        stages.append(activation_stage(stages[1], layer.gate, stages[3]))
    else:
        texts = ("The weights that widen each vector.", inner)
        stages = linear_stages("inner", source, layer.enter, "W_inner", texts)
        stages.append(activation_stage(stages[-1], layer.activation))
    texts = (
        f"The weights that reduce {hidden:,} numbers to {layer.output.out_features:,} again.",
        "The output of the feed-forward layer, as wide as its input.",
    )
    return stages + linear_stages("fed", stages[-1], layer.output, "W_back", texts, kind="fed")
