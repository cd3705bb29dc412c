"""BERT: a bidirectional encoder of a text or a pair of texts.

The configuration selects the outputs. B batch, N tokens, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers import ACTIVATIONS, FeedForward, MultiHeadAttention, PostNormBlock
from heedful.models.checks import check_ids, check_keep, check_rows
from heedful.models.configurations import BertConfig
from heedful.ops import Steps
from heedful.ops.masks import Padding


class BertOutput(NamedTuple):
    """The output of a BERT for a batch.

    logits: (B, N, V), for the token at each position; None without a masked-word head.
    hidden_states: (B, N, width) each; the embeddings, then the output of each block.
    pooled: (B, width), a vector for the whole input; None without a pooler.
    """

    logits: Tensor | None
    hidden_states: tuple[Tensor, ...]
    pooled: Tensor | None = None


class Bert(nn.Module):
    """An encoder with post-norm blocks, learned positions, and segment embeddings.

    Source: Devlin et al. 2018, *BERT: pre-training of deep bidirectional transformers for
    language understanding* (arXiv:1810.04805); document 000 (Chung).

    >>> config = BertConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=3)
    >>> model = Bert(config).eval()
    >>> output = model(torch.tensor([[1, 2, 3, 4, 5]]), segments=torch.tensor([[0, 0, 0, 1, 1]]))
    >>> output.logits.shape, output.pooled.shape, len(output.hidden_states)
    (torch.Size([1, 5, 11]), torch.Size([1, 12]), 4)
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.tokens = nn.Embedding(config.vocabulary, width, padding_idx=config.padding)
        self.positions = nn.Parameter(torch.zeros(config.context_length, width))
        self.segments = nn.Embedding(config.segments, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.pooler = nn.Linear(width, width) if config.pooler else None
        self.head = MaskedWordHead(config, self.tokens) if config.masked_words else None
        self._initialize()

    def forward(
        self, ids: Tensor, *, segments: Tensor | None = None, keep: Tensor | None = None
    ) -> BertOutput:
        """Compute hidden states, logits and the pooled vector.

        Args:
            ids: token ids (B, N), including [CLS] and [SEP].
            segments: (B, N), 0 for tokens of the first text and 1 for the second; default 0.
            keep: boolean (B, N), False for padding on either side, which no token attends to.
                Padding counts in the positions of later tokens, as in transformers.

        Raises:
            ArgumentError: more tokens than the context, an id or a segment out of range, or
                segments or keep of another shape than ids.
        """
        states = self.hidden_states(ids, segments=segments, keep=keep)
        logits = None if self.head is None else self.head(states[-1])
        pooled = None if self.pooler is None else self.pooler(states[-1][:, 0]).tanh()
        return BertOutput(logits, states, pooled)

    def hidden_states(
        self, ids: Tensor, *, segments: Tensor | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute only the hidden states; arguments as `forward`."""
        x, mask = self._embed(ids, segments, keep)
        states = [x]
        for block in self.blocks:
            states.append(block(states[-1], mask=mask))
        return tuple(states)

    def steps(
        self, ids: Tensor, *, segments: Tensor | None = None, keep: Tensor | None = None
    ) -> Iterator[Steps]:
        """Yield the intermediate results of attention layer by layer; weights are (B, H, N, N).

        A layer is computed when the iterator reaches it, so later layers take no memory yet.
        """
        x, mask = self._embed(ids, segments, keep)
        for block in cast("list[PostNormBlock]", self.blocks):
            yield block.attend.steps(block.attention_input(x), mask=mask)
            x = block(x, mask=mask)

    def _embed(
        self, ids: Tensor, segments: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Padding | None]:
        config = self.config
        check_ids(ids, config.vocabulary, config.context_length)
        if segments is not None:
            if segments.shape != ids.shape:
                raise ArgumentError(
                    f"segments {tuple(segments.shape)}",
                    expected=f"the shape of ids, {tuple(ids.shape)}",
                )
            check_rows("segments", segments, config.segments, "more texts than the model takes")
        check_keep(keep, ids)
        segment = self.segments.weight[0] if segments is None else self.segments(segments)
        x = self.tokens(ids) + segment + self.positions[: ids.shape[1]]
        return self.dropout(self.norm(x)), None if keep is None else Padding(keep)

    @torch.no_grad()
    def _initialize(self) -> None:
        """Initialise as the paper does: normal weights, biases 0, norms 1, and zeros for [PAD].

        The paper's standard deviation, 0.02, is for a width of 768. For other widths it
        is multiplied by √(768 / width), so that sums over the width have the same variance.
        """
        deviation = 0.02 * math.sqrt(768 / self.config.width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=deviation)
            elif name.endswith("bias"):
                parameter.zero_()
        if self.config.padding is not None:
            self.tokens.weight[self.config.padding].zero_()


class MaskedWordHead(nn.Module):
    """The masked-word head: a linear layer, an activation, a norm, and the tied token table."""

    def __init__(self, config: BertConfig, tokens: nn.Embedding) -> None:
        super().__init__()
        self.transform = nn.Linear(config.width, config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.output = nn.Linear(config.width, config.vocabulary)
        self.output.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states (..., width) to logits (..., V)."""
        return self.output(self.norm(self.activation(self.transform(x))))


def _block(config: BertConfig) -> PostNormBlock:
    attend = MultiHeadAttention(
        config.width, config.heads, bias=True, dropout=config.attention_dropout
    )
    feed = FeedForward(config.width, config.hidden or 4 * config.width, config.activation)
    return PostNormBlock(
        attend, feed, lambda: nn.LayerNorm(config.width, eps=config.norm_epsilon), config.dropout
    )
