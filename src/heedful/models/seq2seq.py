"""The encoder–decoder transformer of Vaswani et al. 2017.

B batch, N tokens of the target, M tokens of the source, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.layers import (
    BLOCKS,
    DECODER_BLOCKS,
    CrossAttention,
    KeyValueCache,
    MultiHeadAttention,
    feed_forward,
)
from heedful.models.checks import check_ids, check_keep, positions_of
from heedful.models.configurations import Seq2SeqConfig
from heedful.models.gpt import new_norm
from heedful.ops.masks import Padding
from heedful.ops.positions import sinusoidal


class Seq2SeqOutput(NamedTuple):
    """Logits (B, N, V), and hidden states: embeddings, then the output of each block.

    `hidden_states`, (B, N, width) each, are the decoder's; the last one gives the logits.
    `encoder_states`, (B, M, width) each, are the encoder's; the last one is the memory.
    """

    logits: Tensor
    hidden_states: tuple[Tensor, ...]
    encoder_states: tuple[Tensor, ...]


class DecoderCache(NamedTuple):
    """Keys and values of the previous target tokens, and of the source (projected only once)."""

    target: KeyValueCache
    memory: KeyValueCache

    def reorder(self, rows: Tensor) -> None:
        """Replace row b of the target's keys and values with row rows[b]; rows is (B,).

        Rows of the source are unchanged: each beam continues a beam of the same source.
        """
        for layer in self.target.layers:
            for tensor in layer.so_far():
                tensor.copy_(tensor[rows])


class Seq2Seq(nn.Module):
    """An encoder–decoder with sinusoidal positions.

    Source: Vaswani et al. 2017, *Attention is all you need* (arXiv:1706.03762); pre-norm blocks
    with a final norm as in Xiong et al. 2020 (arXiv:2002.04745).

    >>> model = Seq2Seq(Seq2SeqConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=3))
    >>> output = model(torch.tensor([[1, 2, 3, 10]]), torch.tensor([[9, 3, 2]]))
    >>> output.logits.shape, len(output.hidden_states), output.encoder_states[-1].shape
    (torch.Size([1, 3, 11]), 4, torch.Size([1, 4, 12]))
    """

    positions: Tensor

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        rows, width = config.vocabulary, config.width
        self.source_tokens = nn.Embedding(rows, width)
        self.target_tokens = self.source_tokens if config.shared else nn.Embedding(rows, width)
        decoder_layers = config.decoder_layers or config.layers
        self.encoder = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(_block(config, crosses=True) for _ in range(decoder_layers))
        is_pre = config.norm_order == "pre"
        self.encoder_norm = new_norm(config) if is_pre else nn.Identity()
        self.decoder_norm = new_norm(config) if is_pre else nn.Identity()
        self.head = nn.Linear(width, rows, bias=False)
        if config.tied:
            self.head.weight = self.target_tokens.weight
        self.dropout = nn.Dropout(config.dropout)
        table = sinusoidal(config.context_length, width)
        self.register_buffer("positions", table, persistent=False)
        self._initialize()

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_keep: Tensor | None = None,
        target_keep: Tensor | None = None,
    ) -> Seq2SeqOutput:
        """Compute logits for the token after each target token.

        Args:
            source: ids (B, M); each row ends with `config.end`.
            target: ids (B, N); each row begins with `config.begin`.
            source_keep, target_keep: booleans (B, M) and (B, N), False for padding on either
                side, which no token attends to and which has no position.

        Raises:
            ArgumentError: more tokens than the context, an id outside the vocabulary, different
                numbers of sources and targets, or a mask of another shape.
        """
        encoded = self.encoder_states(source, keep=source_keep)
        states = self.decoder_states(target, encoded[-1], keep=target_keep, memory_keep=source_keep)
        return Seq2SeqOutput(self.head(states[-1]), states, encoded)

    def encode(self, source: Tensor, *, keep: Tensor | None = None) -> Tensor:
        """Compute the memory (B, M, width) of sources (B, M); arguments and errors as `forward`."""
        return self.encoder_states(source, keep=keep)[-1]

    def encoder_states(self, source: Tensor, *, keep: Tensor | None = None) -> tuple[Tensor, ...]:
        """Compute the encoder's embeddings, then each block's output; the last is the memory."""
        x, mask = self._embed(self.source_tokens, source, keep, 0, "source")
        states = [x]
        for block in self.encoder:
            states.append(block(states[-1], mask=mask))
        states[-1] = self.encoder_norm(states[-1])
        return tuple(states)

    def decoder_states(
        self,
        target: Tensor,
        memory: Tensor,
        *,
        keep: Tensor | None = None,
        memory_keep: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute the decoder's embeddings, then each block's output; the last gives the logits.

        Args:
            target: ids (B, N).
            memory: (B, M, width), from `encode`.
            keep: boolean, False for padding of the target; it covers the cached tokens, too.
            memory_keep: boolean (B, M), False for padding of the source.
            cache: from `new_cache`; it holds the previous tokens, and `target` is appended. Its
                first use also stores keys and values of `memory`; later uses ignore `memory`.
        """
        start = cache.target.length if cache is not None else 0
        x, mask = self._embed(self.target_tokens, target, keep, start, "target")
        memory_mask = None if memory_keep is None else Padding(memory_keep)
        states = [x]
        for i, block in enumerate(self.decoder):
            x = block(
                x,
                memory,
                mask=mask,
                causal=True,
                cache=cache.target[i] if cache is not None else None,
                memory_mask=memory_mask,
                memory_cache=cache.memory[i] if cache is not None else None,
            )
            states.append(x)
        states[-1] = self.decoder_norm(x)
        return tuple(states)

    def new_cache(self, batch: int, source: int, capacity: int | None = None) -> DecoderCache:
        """Return an empty cache for sources of length `source` and targets up to `capacity`."""
        config, weight = self.config, self.head.weight

        def empty(tokens: int) -> KeyValueCache:
            return KeyValueCache(
                layers=len(self.decoder),
                batch=batch,
                kv_heads=config.heads,
                capacity=tokens,
                head_width=config.width // config.heads,
                dtype=weight.dtype,
                device=weight.device,
            )

        return DecoderCache(empty(capacity or config.context_length), empty(source))

    def _embed(
        self, table: nn.Module, ids: Tensor, keep: Tensor | None, start: int, name: str
    ) -> tuple[Tensor, Padding | None]:
        """Return scaled embeddings plus positions (the paper's section 3.4), and a padding mask."""
        check_ids(ids, self.config.vocabulary, self.config.context_length, start=start, name=name)
        check_keep(keep, ids, start=start, name=f"{name}_keep")
        x = math.sqrt(self.config.width) * table(ids)
        x = self.dropout(x + self.positions[positions_of(ids, start, keep)].to(x.dtype))
        return x, None if keep is None else Padding(keep)

    @torch.no_grad()
    def _initialize(self) -> None:
        """Initialise linear layers as the authors do (Glorot); scaled embeddings get variance 1."""
        for name, parameter in self.named_parameters():
            if "tokens" in name:
                parameter.normal_(std=self.config.width**-0.5)
            elif parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                parameter.zero_()


def _block(config: Seq2SeqConfig, crosses: bool = False) -> nn.Module:
    """Return a block of the encoder, or with `crosses` of the decoder."""
    width, heads, dropout = config.width, config.heads, config.dropout
    cross = CrossAttention(width, heads=heads, bias=True, dropout=dropout) if crosses else None
    attend = MultiHeadAttention(width, heads, bias=True, dropout=dropout)
    feed = feed_forward(width, config.hidden or 4 * width, config.activation, bias=True)
    if cross is None:
        return BLOCKS[config.norm_order](attend, feed, lambda: new_norm(config), dropout)
    return DECODER_BLOCKS[config.norm_order](attend, cross, feed, lambda: new_norm(config), dropout)
