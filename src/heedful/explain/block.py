"""A block of a model: attention, cross-attention and feed-forward, with their norms and sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from heedful.explain.attention import attention_stages
from heedful.explain.common_stages import activation_stage, linear_stages, norm_stage, sum_stage
from heedful.explain.stage_types import Section, Stage
from heedful.layers import FeedForward, GatedFeedForward, PostNormBlock, PostNormDecoderBlock

NORMED = "Each token's vector, normalised"
TABLES = "The learned weights that turn each token's vector into a query, a key and a value."


def block_sections(
    block: Any, source: Stage, layer: int, name: str, memory: Stage | None = None, side: str = "",
    **attending: Any,
) -> list[Section]:  # fmt: skip
    """Return the sections of one block, with all its stages.

    Args:
        block: a block of an encoder or a decoder.
        source: the block's input.
        layer: its number, from 0.
        name: the start of the sections' titles, such as "block 0 of 4".
        memory: the encoder's output, for a decoder's block.
        side: "encoder" or "decoder", in a model that has both.
        attending: arguments of the block's self-attention, such as `causal`.
    """
    post = isinstance(block, PostNormBlock | PostNormDecoderBlock)
    order = "norm after the sum (post-norm)" if post else "norm before it (pre-norm)"
    sections: list[Section] = []

    def add(title: str, part: str, norm: nn.Module, inner: Callable[[Stage], list[Stage]]) -> None:
        before = sections[-1].stages[-1] if sections else source
        stages: list[Stage] = []
        if not post:
            about = f"{NORMED}: the input of {part}."
            stages.append(norm_stage("normed", before, norm, about))
        stages += inner(stages[-1] if stages else before)
        sentence = f"The residual sum: the output of {part} is added to each token's vector."
        stages.append(sum_stage(f"sum after {part}", [before, stages[-1]], sentence))
        if post:
            about = f"{NORMED} after the sum: Add & Norm in document 004."
            stages.append(norm_stage("normed", stages[-1], norm, about))
        sections.append(Section(f"{name}: {title}, {order}", tuple(stages), part, side, layer))

    attend = functools.partial(attention_stages, tables=TABLES)
    title = "masked self-attention" if attending.get("causal") else "self-attention"
    add(title, "attention", block.attend_norm,
        lambda inputs: attend(block.attend, inputs, **attending))  # fmt: skip
    if memory is not None:
        add("cross-attention", "cross-attention", block.cross_norm,
            lambda inputs: attend(block.cross, inputs, memory))  # fmt: skip
    add("feed-forward", "feed-forward", block.feed_norm,
        lambda inputs: _feed_forward(block.feed, inputs))  # fmt: skip
    return sections


def _feed_forward(layer: FeedForward | GatedFeedForward, source: Stage) -> list[Stage]:
    """Return the stages of the feed-forward layer: inner width, activation, output."""
    width, hidden = source.shape[-1], layer.output.in_features
    inner = f"Each token's vector, on its own, becomes wider: from {width:,} to {hidden:,} numbers."
    if isinstance(layer, GatedFeedForward):
        about = ("The weights of the gate.", inner)
        stages = linear_stages("gate", source, layer.enter, "W_gate", about, slice(0, hidden))
        about = ("The weights of the vectors that the gate multiplies.", inner)
        stages += linear_stages("up", source, layer.enter, "W_up", about, slice(hidden, None))
        stages.append(activation_stage(stages[1], layer.gate, stages[3]))
    else:
        about = ("The weights that widen each vector.", inner)
        stages = linear_stages("inner", source, layer.enter, "W_inner", about)
        stages.append(activation_stage(stages[-1], layer.activation))
    about = (
        f"The weights that bring {hidden:,} numbers back to {layer.output.out_features:,}.",
        "The output of feed-forward, as wide as the model's vectors.",
    )
    return stages + linear_stages("fed", stages[-1], layer.output, "W_back", about, kind="fed")
