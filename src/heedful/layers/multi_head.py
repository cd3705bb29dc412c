"""Multi-head attention with one projection and one attention call for all heads."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from heedful.layers.array_inputs import takes_arrays, takes_unbatched
from heedful.layers.cache import LayerCache
from heedful.layers.checks import check_tokens
from heedful.layers.norm import RMSNorm
from heedful.layers.option_names import check_heads
from heedful.ops import Steps, attention, steps
from heedful.ops.arguments import check_dropout
from heedful.ops.masks import Mask
from heedful.ops.positions import rotate


class Heads(NamedTuple):
    """Query (B, H, N, d), key and value (B, G, M, d): the inputs of a call of attention.

    A single sequence has no axis B. `SelfAttention` and its variants have no axis H or G.
    """

    query: Tensor
    key: Tensor
    value: Tensor


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention, optionally with grouped key heads and QK-norm.

    The input is (N, width) or (B, N, width). NumPy arrays in, NumPy arrays out.

    Sources: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2; document 004 (Zhang), step 4;
    grouped keys: Ainslie et al. 2023 (arXiv:2305.13245); QK-norm: Henry et al. 2020
    (arXiv:2010.04245), with RMSNorm on each head as in Qwen3.

    Args:
        width: of the input and the output.
        heads: number of query heads, H.
        kv_heads: number of key and value heads, G, a divisor of H; default H.
        head_width: d; default width / H.
        bias: whether the projections to query, key and value have a bias.
        output_bias: whether the output projection has a bias; default `bias`.
        qk_norm: apply RMSNorm to each query and key.
        norm_epsilon: added to the mean square in these norms.
        dropout: on the weights, in training mode.

    Raises:
        ArgumentError: numbers of heads that `check_heads` refuses, or a dropout outside [0, 1).

    >>> import torch
    >>> attend = MultiHeadAttention(width=64, heads=4)
    >>> attend(torch.zeros(4, 16, 64), causal=True).shape
    torch.Size([4, 16, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        qk_norm: bool = False,
        norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        check_heads(width, heads, self.kv_heads, head_width)
        check_dropout(dropout)
        self.head_width = width // heads if head_width is None else head_width
        self.dropout = dropout
        projected = (heads + 2 * self.kv_heads) * self.head_width
        self.projection = nn.Linear(width, projected, bias=bias)
        self.output = nn.Linear(
            heads * self.head_width, width, bias=bias if output_bias is None else output_bias
        )
        self.query_norm, self.key_norm = (
            RMSNorm(self.head_width, eps=norm_epsilon) if qk_norm else nn.Identity()
            for _ in range(2)
        )

    @takes_arrays
    @takes_unbatched
    def forward(
        self,
        x: Float[Tensor, "*batch queries width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "*batch queries width"]:
        """Attend from each token of x to those of x and of the cache. The output is shaped like x.

        Args:
            x: (B, N, width), or (N, width) for a single sequence.
            mask: over all M keys, True = may attend, as in `heedful.attention`.
            causal: no token may attend to later tokens.
            rotary: cosines and sines (N, d / 2) of the tokens' positions, from `positions.rotary`.
            cache: keys and values of earlier tokens; the keys and values of x are appended.
        """
        query, key, value = self.project(x, rotary=rotary, cache=cache)
        dropout = self.dropout if self.training else 0.0
        context = attention(query, key, value, mask=mask, causal=causal, dropout=dropout)
        return self.output(context.transpose(1, 2).flatten(2))

    @takes_arrays
    @takes_unbatched
    def project(
        self,
        x: Float[Tensor, "*batch queries width"],
        *,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Return query, key and value: projected, split into heads, normalised and rotated."""
        check_tokens(x, self.projection.in_features, axes=(2, 3))
        heads = self.projection(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        query, key, value = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        query, key = self.query_norm(query), self.key_norm(key)
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        if cache is not None:
            key, value = cache.append(key, value)
        return Heads(query, key, value)

    @takes_arrays
    @takes_unbatched
    def steps(
        self,
        x: Float[Tensor, "*batch queries width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Steps:
        """Return every intermediate result up to the context. A head's scores are N × M numbers."""
        return steps(*self.project(x, rotary=rotary), mask=mask, causal=causal)
