"""Cross-attention: the queries are from one sequence, the keys and values from another one."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers.array_inputs import takes_arrays, takes_unbatched
from heedful.layers.cache import LayerCache
from heedful.layers.checks import check_tokens
from heedful.layers.multi_head import Heads
from heedful.layers.option_names import check_heads
from heedful.ops import Steps, attention, steps
from heedful.ops.arguments import check_dropout
from heedful.ops.masks import Mask


class CrossAttention(nn.Module):
    """Multi-head attention from x (queries) to a second input, the memory (keys and values).

    In this way a decoder attends to the output of an encoder, and text to image patches. The
    memory's vectors may have another width than x. NumPy arrays in, NumPy arrays out.

    Sources: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3; documents 001 (Pahwa) and 003
    (after Raschka).

    Args:
        width: of x and of the output.
        memory_width: of the memory; default `width`.
        heads: H.
        head_width: d; default width / H.
        bias: whether the projections to query, key and value have a bias.
        output_bias: whether the output projection has a bias; default `bias`.
        dropout: on the weights, in training mode.

    Raises:
        ArgumentError: numbers of heads that `check_heads` refuses, a dropout outside [0, 1), or a
            memory that does not fit.

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
        # A single projection to the keys and values of all heads
        self.memory = nn.Linear(memory_width, 2 * inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias if output_bias is None else output_bias)

    @takes_arrays
    @takes_unbatched
    def forward(
        self,
        x: Float[Tensor, "*batch queries width"],
        memory: Float[Tensor, "*batch keys memory_width"],
        *,
        mask: Tensor | Mask | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "*batch queries width"]:
        """Attend from each token of x to the memory's tokens. The output is shaped like x.

        Args:
            x: (B, N, width), or (N, width) for a single sequence.
            memory: (B, M, memory width), or (M, memory width).
            mask: True = may attend, as in `heedful.attention`; use `masks.Padding` for a padded
                memory.
            cache: if it is empty, it stores the keys and values of the memory; else it supplies
                them, so that a decoder projects the memory only once. `memory` is then not read:
                clear the cache before you pass another memory.
        """
        query, key, value = self.project(x, memory, cache=cache)
        dropout = self.dropout if self.training else 0.0
        context = attention(query, key, value, mask=mask, dropout=dropout)
        return self.output(context.transpose(1, 2).flatten(2))

    @takes_arrays
    @takes_unbatched
    def project(
        self,
        x: Float[Tensor, "*batch queries width"],
        memory: Float[Tensor, "*batch keys memory_width"],
        *,
        cache: LayerCache | None = None,
    ) -> Heads:
        """Return query (B, H, N, d), key and value (B, H, M, d); only a batch has B."""
        check_tokens(x, self.query.in_features, axes=(2, 3))
        check_tokens(memory, self.memory.in_features, name="memory")
        if len(memory) != len(x):
            raise ArgumentError(
                f"a memory of batch size {len(memory)} for x of batch size {len(x)}",
                expected="equal batch sizes",
                remedy="memory.expand(batch, -1, -1) repeats one memory for all sequences",
            )
        query = self._split(self.query(x))
        if cache is None:
            return Heads(query, *self._project_memory(memory))
        if cache.length == 0:
            return Heads(query, *cache.append(*self._project_memory(memory)))
        return Heads(query, *cache.so_far())

    @takes_arrays
    @takes_unbatched
    def steps(
        self,
        x: Float[Tensor, "*batch queries width"],
        memory: Float[Tensor, "*batch keys memory_width"],
        *,
        mask: Tensor | Mask | None = None,
    ) -> Steps:
        """Return every intermediate result up to the context. A head's scores are N × M numbers."""
        return steps(*self.project(x, memory), mask=mask)

    def _project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.memory(memory).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def _split(self, joined: Tensor) -> Tensor:
        """Reshape (B, N, H·d) to (B, H, N, d)."""
        return joined.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)
