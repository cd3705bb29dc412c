"""A block of a model: attention, cross-attention and feed-forward, with their norms and sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from heedful.explain.attention import attention_stages
from heedful.explain.operations import activated, added, linear, normed
from heedful.explain.stages import Section, Stage
from heedful.layers import FeedForward, GatedFeedForward, PostNormBlock, PostNormDecoderBlock

NORMED = "Each token's vector brought to one size by the layer's norm"
TABLES = "The weights that make queries, keys and values, as the model has learned them."


def opened(
    block: Any, source: Stage, layer: int, name: str, memory: Stage | None = None, side: str = "",
    **attending: Any,
) -> list[Section]:  # fmt: skip
    """The sections of one block.

    Args:
        block: of an encoder or a decoder.
        source: what comes to the block.
        layer: its number, from 0.
        name: what it is called, such as "block 0 of 4".
        memory: what the encoder has made, for a decoder's block.
        side: of an encoder–decoder.
        attending: what the model gives to the block's self-attention, such as `causal`.
    """
    post = isinstance(block, PostNormBlock | PostNormDecoderBlock)
    order = "norm after the sum (post-norm)" if post else "norm before it (pre-norm)"
    found: list[Section] = []

    def add(title: str, what: str, norm: nn.Module, inner: Callable[[Stage], list[Stage]]) -> None:
        arrives = found[-1].stages[-1] if found else source
        stages: list[Stage] = []
        if not post:
            about = f"{NORMED}; this is what {what} reads."
            stages.append(normed("normed", arrives, norm, about))
        stages += inner(stages[-1] if stages else arrives)
        sentence = f"What came to {what} and what it has found, added: the residual sum."
        stages.append(added(f"sum after {what}", [arrives, stages[-1]], sentence))
        if post:
            about = f"{NORMED}, after the sum: Add & Norm in document 004."
            stages.append(normed("normed", stages[-1], norm, about))
        found.append(Section(f"{name}: {title}, {order}", tuple(stages), what, side, layer))

    attend = functools.partial(attention_stages, tables=TABLES)
    title = "masked self-attention" if attending.get("causal") else "self-attention"
    add(title, "attention", block.attend_norm,
        lambda reads: attend(block.attend, reads, **attending))  # fmt: skip
    if memory is not None:
        add("cross-attention", "cross-attention", block.cross_norm,
            lambda reads: attend(block.cross, reads, memory))  # fmt: skip
    add("feed-forward", "feed-forward", block.feed_norm, lambda reads: _fed(block.feed, reads))
    return found


def _fed(layer: FeedForward | GatedFeedForward, reads: Stage) -> list[Stage]:
    """The feed-forward layer: to its inner width, the activation, and back."""
    width, hidden = reads.shape[-1], layer.output.in_features
    inner = f"Each token by itself is made wider, {width:,} to {hidden:,} numbers."
    if isinstance(layer, GatedFeedForward):
        about = ("The weights of the gate.", inner)
        found = linear("gate", reads, layer.enter, "W_gate", about, slice(0, hidden))
        about = ("The weights of what goes through the gate.", inner)
        found += linear("up", reads, layer.enter, "W_up", about, slice(hidden, None))
        found.append(activated(found[1], layer.gate, found[3]))
    else:
        about = ("The weights that make a token wider.", inner)
        found = linear("inner", reads, layer.enter, "W_inner", about)
        found.append(activated(found[-1], layer.activation))
    about = (
        f"The weights that bring {hidden:,} numbers back to {layer.output.out_features:,}.",
        "Back to the width of the model: what the token has made of what it gathered.",
    )
    return found + linear("fed", found[-1], layer.output, "W_back", about, kind="fed")
