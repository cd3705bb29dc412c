"""Cross-attention: the tokens of one source ask, those of another answer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers.array_inputs import takes_arrays, takes_one
from heedful.layers.cache import LayerCache
from heedful.layers.checks import check_tokens
from heedful.layers.multi_head import Heads
from heedful.layers.options import check_heads
from heedful.ops import Steps, attention, steps
from heedful.ops.arguments import check_dropout
from heedful.ops.masks import Mask


class CrossAttention(nn.Module):
    """Queries from one sequence; keys and values from another, the memory. Arrays give arrays.

    A decoder looks so at what the encoder read, and text at the patches of a picture, whose
    vectors may have another width. Sources: Vaswani et al. 2017 (arXiv:1706.03762), section
    3.2.3; documents 001 (Pahwa) and 003 (after Raschka).

    Args:
        width: of the tokens that ask, in and out.
        memory_width: of the tokens that answer; default `width`.
        heads: H.
        head_width: d; default width / H.
        bias: whether the projections to query, key and value have one.
        output_bias: whether the projection of the joined heads has one; default `bias`.
        dropout: on the weights, while training.

    Raises:
        ArgumentError: heads that do not divide the width; a memory or a cache of another batch.

    >>> import torch
    >>> words, patches = torch.rand(1, 4, 8), torch.rand(1, 9, 6)
    >>> layer = CrossAttention(8, 6, heads=2)
    >>> layer(words, patches).shape, layer.steps(words, patches).weights.shape
    (torch.Size([1, 4, 8]), torch.Size([1, 2, 4, 9]))
    """

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        heads: int = 1,
        head_width: int | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(width, heads, heads, head_width)
        check_dropout(dropout)
        memory_width = width if memory_width is None else memory_width
        if memory_width < 1:
            raise ArgumentError(f"a memory of width {memory_width}", expected="at least 1")
        self.head_width = width // heads if head_width is None else head_width
        self.heads, self.dropout = heads, dropout
        inner = heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        # keys and values of all heads in one product
        self.memory = nn.Linear(memory_width, 2 * inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias if output_bias is None else output_bias)

    @takes_arrays
    @takes_one
    def forward(
        self,
        x: Float[Tensor, "*batch queries width"],
        memory: Float[Tensor, "*batch keys memory_width"],
        *,
        mask: Tensor | Mask | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "*batch queries width"]:
        """Each token of x attends to the tokens of the memory.

        Args:
            x: (B, N, width), or (N, width) of one sequence alone.
            memory: (B, M, memory width), or (M, memory width).
            mask: True = may attend, as in `heedful.attention`; `masks.Padding` for a memory with
                padding.
            cache: an empty one takes the keys and values of the memory; a filled one gives them
                back, so that a decoder projects the memory once for all its tokens. Of the
                memory it then compares the shape alone: clear it for another text.
        """
        query, key, value = self.project(x, memory, cache=cache)
        dropout = self.dropout if self.training else 0.0
        context = attention(query, key, value, mask=mask, dropout=dropout)
        return self.output(context.transpose(1, 2).flatten(2))

    @takes_arrays
    @takes_one
    def project(
        self,
        x: Float[Tensor, "*batch queries width"],
        memory: Float[Tensor, "*batch keys memory_width"],
        *,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Query (B, H, N, d), key and value (B, H, M, d); without B for one sequence alone."""
        check_tokens(x, self.query.in_features, axes=(2, 3))
        check_tokens(memory, self.memory.in_features, name="memory")
        if len(memory) != len(x):
            raise ArgumentError(
                f"a memory of batch {len(memory)} for x of batch {len(x)}",
                expected="a memory for each sequence of x",
                remedy="one memory for all of them is memory.expand(batch, -1, -1)",
            )
        query = self._split(self.query(x))
        if cache is None:
            return Heads(query, *self._remember(memory))
        _check_cache(cache, (len(memory), self.heads, memory.shape[1], self.head_width))
        if cache.length == 0:
            return Heads(query, *cache.append(*self._remember(memory)))
        return Heads(query, *cache.so_far())

    @takes_arrays
    @takes_one
    def steps(
        self,
        x: Float[Tensor, "*batch queries width"],
        memory: Float[Tensor, "*batch keys memory_width"],
        *,
        mask: Tensor | Mask | None = None,
    ) -> Steps:
        """What `forward` computes up to the context, every intermediate kept (N × M a head)."""
        return steps(*self.project(x, memory), mask=mask)

    def _remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.memory(memory).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def _split(self, joined: Tensor) -> Tensor:
        """(B, N, H·d) as (B, H, N, d)."""
        return joined.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)


def _check_cache(cache: LayerCache, wanted: tuple[int, int, int, int]) -> None:
    """Refuse a cache that was not made for keys of this shape (B, H, M, d), or holds others."""
    (batch, heads, _, width), (B, H, M, d) = cache.keys.shape, wanted
    if (batch, heads, width) != (B, H, d):
        raise ArgumentError(
            f"a cache for a batch of {batch}, {heads} heads of width {width}",
            expected=f"a batch of {B}, {H} heads of width {d}",
            cause="a cache of another layer or of another batch",
        )
    if cache.length not in (0, M):
        raise ArgumentError(
            f"a memory of {M} tokens",
            expected=f"the {cache.length} that the cache holds",
            cause="a cache of another text",
            remedy="clear the cache, or make a new one",
        )
