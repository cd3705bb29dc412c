"""Configurations of the GPT, the BERT and the encoder–decoder, validated when created.

This module does not import torch, so that `--help`, which lists the fields, is fast.
"""

from __future__ import annotations

import dataclasses

from heedful.configuration import Configuration, setting
from heedful.errors import ArgumentError
from heedful.layers.option_names import (
    ACTIVATION_NAMES,
    GATE_NAMES,
    NORM_NAMES,
    NORM_ORDERS,
    check_heads,
)
from heedful.rotary_scaling import RotaryScaling

# Files of a run: the weights with the lowest validation loss, and the latest weights
CHECKPOINTS = {"best": "model.safetensors", "last": "state/last.safetensors"}
SHARDED = "state/sharded"  # the latest weights, if sharded over processes


@dataclasses.dataclass(frozen=True)
class GPTConfig(Configuration):
    """The architecture of a GPT.

    >>> GPTConfig(vocabulary=100, width=60, heads=8)
    Traceback (most recent call last):
    heedful.errors.ArgumentError: 8 heads for a width of 60; expected a number of heads that \
divides the width; try 6 heads
    """

    vocabulary: int = setting(
        dataclasses.MISSING, "Rows of the token table; the tokenizer's size.", low=1
    )
    context_length: int = setting(128, "Maximum number of input tokens.", low=1)
    width: int = setting(128, "Numbers in each token's vector (d_model).", low=1)
    layers: int = setting(4, "Transformer blocks.", low=1)
    heads: int = setting(4, "Query heads in each block; they must divide the width.", low=1)
    kv_heads: int | None = setting(
        None, "Key and value heads, shared by groups of query heads; default: not shared.", low=1
    )
    head_width: int | None = setting(
        None, "Numbers in each head's query, key and value; default: width / heads.", low=1
    )
    window: int | None = setting(
        None, "Tokens that each token may attend to, itself included; default: no limit.", low=1
    )
    hidden: int | None = setting(
        None, "Width inside the feed-forward layer; default: 4 × width.", low=1
    )
    positions: str = setting(
        "rotary", "How position is encoded.", choices=("sinusoidal", "learned", "rotary")
    )
    rotary_base: float = setting(10_000.0, "Base of the rotary wavelengths.", low=1.0)
    rotary_scaling: RotaryScaling | None = setting(  # noqa: RUF009
        None, "Scaling of the rotary frequencies."
    )
    convolution: int = setting(
        0,
        "Reach of a short convolution, in tokens: it adds the vectors of previous tokens to each "
        "token's vector; 0: none.",
        low=0,
    )
    activation: str = setting(
        "relu2", "Activation of the feed-forward layer.", choices=(*ACTIVATION_NAMES, *GATE_NAMES)
    )
    norm: str = setting("rms", "LayerNorm or RMSNorm.", choices=NORM_NAMES)
    norm_order: str = setting(
        "pre",
        "Norms before each layer (pre, as in GPT-2), or after each residual sum (post, as in "
        "BERT and document 004 by Zhang).",
        choices=NORM_ORDERS,
    )
    norm_epsilon: float = setting(1e-5, "Added to the variance in norms.", low=0.0)
    qk_norm: bool = setting(True, "RMSNorm on each query and key.")
    bias: bool = setting(False, "Biases in the output projection and the feed-forward layer.")
    feed_bias: bool | None = setting(
        None, "Biases in the feed-forward layer; default: the value of bias."
    )
    logit_bias: bool = setting(False, "A bias in the output layer.")
    attention_bias: bool = setting(False, "Biases in the projections to query, key and value.")
    tied: bool = setting(True, "The output layer shares the token table.")
    dropout: float = setting(
        0.0, "Dropout rate of attention weights and layer outputs.", low=0.0, high=0.9
    )
    embedding_dropout: float = setting(0.0, "Dropout rate of the embeddings.", low=0.0, high=0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.width, self.heads, self.kv_heads or self.heads, self.head_width)
        if self.positions != "learned":
            is_rotary = self.positions == "rotary"
            _check_even(self.width_of_heads if is_rotary else self.width, per_head=is_rotary)

    @property
    def width_of_heads(self) -> int:
        """Numbers in each head's query, key and value."""
        return self.head_width or self.width // self.heads


def _check_even(width: int, per_head: bool = False) -> None:
    if width % 2:
        raise ArgumentError(
            f"a width of {width}{' per head' * per_head}",
            expected="an even width" + " per head" * per_head,
            cause="the sines and cosines of positions come in pairs",
            remedy="change width or heads",
        )


@dataclasses.dataclass(frozen=True)
class BertConfig(Configuration):
    """The architecture of a BERT; the defaults are BERT base, the model of document 000 (Chung).

    >>> config = BertConfig(layers=24, width=1024, heads=16)  # BERT large
    >>> config.hidden or 4 * config.width
    4096
    """

    vocabulary: int = setting(30522, "Rows of the token table; the tokenizer's size.", low=1)
    context_length: int = setting(512, "Maximum number of input tokens.", low=1)
    segments: int = setting(2, "Number of segment embeddings (texts in a pair).", low=1)
    width: int = setting(768, "Numbers in each token's vector (hidden size).", low=1)
    layers: int = setting(12, "Transformer blocks.", low=1)
    heads: int = setting(12, "Heads in each block; they must divide the width.", low=1)
    hidden: int | None = setting(
        None, "Width inside the feed-forward layer; default: 4 × width.", low=1
    )
    activation: str = setting(
        "gelu", "Activation of the feed-forward layer.", choices=("gelu", "gelu_tanh", "relu")
    )
    norm_epsilon: float = setting(1e-12, "Added to the variance in norms.", low=0.0)
    padding: int | None = setting(
        0, "The id of [PAD], whose embedding learns nothing from inputs; none: no such id.", low=0
    )
    pooler: bool = setting(True, "A layer that computes one vector for the input.")
    masked_words: bool = setting(True, "A head that predicts the word at a [MASK].")
    dropout: float = setting(
        0.1, "Dropout rate of embeddings and layer outputs.", low=0.0, high=0.9
    )
    attention_dropout: float = setting(0.1, "Dropout rate of attention weights.", low=0.0, high=0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.width, self.heads, self.heads, None)
        if self.padding is not None and self.padding >= self.vocabulary:
            raise ArgumentError(
                f"padding = {self.padding}", expected=f"an id below {self.vocabulary}, or none"
            )


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig(Configuration):
    """The architecture of an encoder–decoder; source and target share a vocabulary.

    The tokenizer lacks the last two ids: `begin`, the first token of a target, and `end`, the last
    token of sources and targets.

    >>> config = Seq2SeqConfig(vocabulary=30)
    >>> config.begin, config.end
    (28, 29)
    """

    vocabulary: int = setting(
        dataclasses.MISSING, "Rows of the token table; the tokenizer's size + 2.", low=3
    )
    context_length: int = setting(
        128, "Maximum number of tokens of a source or target, with its end.", low=1
    )
    width: int = setting(128, "Numbers in each token's vector (d_model).", low=1)
    layers: int = setting(2, "Blocks of the encoder.", low=1)
    decoder_layers: int | None = setting(
        None, "Blocks of the decoder; default: as many as in the encoder.", low=1
    )
    heads: int = setting(4, "Heads in each attention layer; they must divide the width.", low=1)
    hidden: int | None = setting(
        None, "Width inside the feed-forward layer; default: 4 × width.", low=1
    )
    activation: str = setting(
        "relu", "Activation of the feed-forward layer.", choices=(*ACTIVATION_NAMES, *GATE_NAMES)
    )
    norm: str = setting("layer", "LayerNorm or RMSNorm.", choices=NORM_NAMES)
    norm_order: str = setting(
        "pre",
        "Norms before each layer (pre), or after each residual sum (post, as in the 2017 paper).",
        choices=NORM_ORDERS,
    )
    norm_epsilon: float = setting(1e-5, "Added to the variance in norms.", low=0.0)
    shared: bool = setting(True, "Source and target share the token table.")
    tied: bool = setting(True, "The output layer shares the target's token table.")
    dropout: float = setting(
        0.1, "Dropout rate of attention weights, embeddings and layer outputs.", low=0.0, high=0.9
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.width, self.heads, self.heads, None)
        _check_even(self.width)

    @property
    def begin(self) -> int:
        """The id of a target's first token."""
        return self.vocabulary - 2

    @property
    def end(self) -> int:
        """The id of the last token of a source or a target."""
        return self.vocabulary - 1
