"""GPT: a decoder-only transformer, configurable from the model of document 004 (Zhang) to Llama.

B batch, N tokens, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.layers import (
    BLOCKS,
    NORMS,
    KeyValueCache,
    MultiHeadAttention,
    PreNormBlock,
    ShortConvolution,
    feed_forward,
)
from heedful.models.checks import check_ids, check_keep, positions_of
from heedful.models.configurations import GPTConfig, Seq2SeqConfig
from heedful.ops import Steps
from heedful.ops.masks import Mask, Padding, Window
from heedful.ops.positions import rotary, sinusoidal


class GPTOutput(NamedTuple):
    """Logits (B, N, V), and hidden states (B, N, width): embeddings, then each block's output.

    The last hidden state is the output of the final norm, from which the logits are computed.
    """

    logits: Tensor
    hidden_states: tuple[Tensor, ...]


class GPT(nn.Module):
    """A decoder-only transformer.

    Sources: document 004 (Zhang); Radford et al. 2019, *Language models are unsupervised multitask
    learners*.

    >>> model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=3))
    >>> output = model(torch.tensor([[1, 2, 3, 4, 5]]))
    >>> output.logits.shape, len(output.hidden_states)
    (torch.Size([1, 5, 11]), 4)
    """

    positions: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.convolution = (
            ShortConvolution(config.width, config.convolution) if config.convolution else None
        )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.norm = new_norm(config) if config.norm_order == "pre" else nn.Identity()
        self.head = nn.Linear(config.width, config.vocabulary, bias=config.logit_bias)
        if config.tied:
            self.head.weight = self.tokens.weight
        self.dropout = nn.Dropout(config.embedding_dropout)
        self._add_positions()
        self._initialize()

    def forward(
        self, ids: Tensor, *, keep: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> GPTOutput:
        """Compute logits for the token after each of `ids`.

        Args:
            ids: token ids (B, N).
            keep: boolean (B, M), False for padding on either side, which no token attends to and
                which has no position. `keep` covers M tokens: the cached ones, then `ids`.
            cache: from `new_cache`; it holds the previous tokens, and `ids` are appended.

        Raises:
            ArgumentError: more tokens than the context, an id outside the vocabulary, or a `keep`
                of another shape.
        """
        states = self.hidden_states(ids, keep=keep, cache=cache)
        return GPTOutput(self.head(states[-1]), states)

    def hidden_states(
        self, ids: Tensor, *, keep: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, ...]:
        """Compute hidden states only; generation needs no logits but those of the last token."""
        x, attending = self._embed(ids, keep, cache)
        states = [x]
        for i, block in enumerate(self.blocks):
            x = block(x, **attending, cache=cache[i] if cache is not None else None)
            states.append(x)
        states[-1] = self.norm(x)
        return tuple(states)

    def steps(self, ids: Tensor) -> Iterator[Steps]:
        """Yield the intermediate results of attention layer by layer; weights are (B, H, N, N).

        A layer is computed when the iterator reaches it, so later layers take no memory yet.
        """
        x, attending = self._embed(ids)
        for block in cast("list[PreNormBlock]", self.blocks):
            yield block.attend.steps(block.attention_input(x), **attending)
            x = block(x, **attending)

    def mask(self, keep: Tensor | None = None) -> Mask | None:
        """Return the mask of window and padding, without causality; None if there is neither.

        Args:
            keep: as for `forward`.
        """
        padding = None if keep is None else Padding(keep)
        if self.config.window is None:
            return padding
        window = Window(self.config.window)
        return window if padding is None else window & padding

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KeyValueCache:
        """Return an empty key/value cache; its default capacity is the context length."""
        config, weight = self.config, self.tokens.weight
        return KeyValueCache(
            layers=config.layers,
            batch=batch,
            kv_heads=config.kv_heads or config.heads,
            capacity=capacity or config.context_length,
            head_width=config.width_of_heads,
            dtype=weight.dtype,
            device=weight.device,
        )

    def _embed(
        self, ids: Tensor, keep: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the input of the first block, and the arguments of attention in every block."""
        start = cache.length if cache is not None else 0
        check_ids(ids, self.config.vocabulary, self.config.context_length, start=start)
        check_keep(keep, ids, start=start)
        positions = positions_of(ids, start, keep)
        x = self.tokens(ids) if self.convolution is None else self._convolved(ids, keep, cache)
        attending: dict[str, Any] = {"mask": self.mask(keep), "causal": True}
        if self.config.positions != "rotary":
            return self.dropout(x + self.positions[positions].to(x.dtype)), attending
        cosines, sines = self.cosines[positions], self.sines[positions]
        if cosines.ndim == 3:  # one row per sequence, for all heads
            cosines, sines = cosines[:, None], sines[:, None]
        return self.dropout(x), attending | {"rotary": (cosines, sines)}

    def _convolved(self, ids: Tensor, keep: Tensor | None, cache: KeyValueCache | None) -> Tensor:
        """Return the convolution of token embeddings; previous ids come from the cache."""
        convolution, previous = cast(ShortConvolution, self.convolution), 0
        if cache is not None:
            start = cache.length
            cache.ids[:, start : start + ids.shape[1]] = ids
            previous = min(start, convolution.reach)
            ids = cache.ids[:, start - previous : start + ids.shape[1]]
        keep = None if keep is None else keep[:, -ids.shape[1] :]
        return convolution(self.tokens(ids), keep)[:, previous:]

    def _add_positions(self) -> None:
        config = self.config
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.zeros(config.context_length, config.width))
        elif config.positions == "sinusoidal":
            table = sinusoidal(config.context_length, config.width)
            self.register_buffer("positions", table, persistent=False)
        else:
            angles = rotary(
                torch.arange(config.context_length, device="cpu"),
                config.width_of_heads,
                config.rotary_base,
                config.rotary_scaling,
            )
            for name, table in zip(("cosines", "sines"), angles, strict=True):
                self.register_buffer(name, table, persistent=False)

    @torch.no_grad()
    def _initialize(self) -> None:
        """Initialise as GPT-2 does: normal weights, smaller in layers that add to the residual.

        GPT-2's standard deviation, 0.02, is for a width of 768. For other widths it is
        multiplied by √(768 / width), so that sums over the width have the same variance.
        """
        deviation = 0.02 * math.sqrt(768 / self.config.width)
        for name, parameter in self.named_parameters():
            if name.endswith("output.weight"):
                parameter.normal_(std=deviation / math.sqrt(2 * self.config.layers))
            elif parameter.ndim == 2:
                parameter.normal_(std=deviation)
            elif name.endswith("bias"):
                parameter.zero_()
        if self.config.positions == "sinusoidal" and not self.config.tied:
            self.tokens.weight.normal_()  # as large as the sines that are added to it


def loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Compute the mean cross-entropy, in nats per token, of logits (..., V) and true ids (...).

    `smoothing` is the share of the target probability that is spread evenly over all V tokens:
    Szegedy et al. 2016 (arXiv:1512.00567), section 7.
    """
    flat = logits.flatten(0, -2).float()
    return F.cross_entropy(flat, targets.flatten(), label_smoothing=smoothing)


def new_norm(config: GPTConfig | Seq2SeqConfig) -> nn.Module:
    """Return a norm of the kind that the configuration selects."""
    return NORMS[config.norm](config.width, eps=config.norm_epsilon)


def _block(config: GPTConfig) -> PreNormBlock:
    attend = MultiHeadAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_width=config.head_width,
        bias=config.attention_bias,
        output_bias=config.bias,
        qk_norm=config.qk_norm,
        norm_epsilon=config.norm_epsilon,
        dropout=config.dropout,
    )
    feed = feed_forward(
        config.width,
        config.hidden or 4 * config.width,
        config.activation,
        config.bias if config.feed_bias is None else config.feed_bias,
    )
    return BLOCKS[config.norm_order](attend, feed, lambda: new_norm(config), config.dropout)
