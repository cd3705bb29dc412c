"""Attention with one head, as one meets it first: without weights, with weights, causal.

Each layer takes tokens (N, width) or a batch of them (B, N, width); d is the width of a head.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers.checks import check_heads, check_tokens
from heedful.layers.multihead import Heads
from heedful.ops import Steps, attention, steps
from heedful.ops.arguments import check_dropout
from heedful.ops.masks import Mask


class SimpleSelfAttention(nn.Module):
    """Every token is its own query, key and value: nothing is learned, nothing is scaled.

    Source: document 002, part 1.

    >>> import torch
    >>> words = torch.tensor([[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]])
    >>> SimpleSelfAttention()(words)
    tensor([[0.4886, 0.5019, 0.7776],
            [0.5058, 0.6050, 0.7447]])
    """

    def forward(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch tokens width"]:
        """For each token, the mean of all, weighted by how alike they are."""
        return attention(*self.project(x), mask=mask, causal=causal, scale=1.0)

    def project(self, x: Float[Tensor, "*batch tokens width"]) -> Heads:
        """The tokens themselves, three times."""
        return Heads(x, x, x)

    def steps(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
    ) -> Steps:
        """What `forward` computes, every intermediate kept."""
        return steps(*self.project(x), mask=mask, causal=causal, scale=1.0)


class SelfAttention(nn.Module):
    """Learned projections to query, key and value: scaled dot-product attention with one head.

    Sources: documents 001 (section 5.2) and 002 (part 2); Vaswani et al. 2017
    (arXiv:1706.03762), section 3.2.1.

    Args:
        width: of the tokens' vectors.
        head_width: d, of query, key and value; default `width`.
        bias: whether the projections have one.
        project_back: a projection from d back to `width`, as in document 001.
        residual: the tokens are added to what comes out.
        dropout: on the weights, while training.

    Raises:
        ArgumentError: a width below 1, a residual sum of two widths.

    >>> import torch
    >>> layer = SelfAttention(128, 16, project_back=True, residual=True)
    >>> sentence = torch.rand(7, 128)
    >>> layer.query(sentence).shape, layer.steps(sentence).weights.shape, layer(sentence).shape
    (torch.Size([7, 16]), torch.Size([7, 7]), torch.Size([7, 128]))
    """

    def __init__(
        self,
        width: int,
        head_width: int | None = None,
        *,
        bias: bool = False,
        project_back: bool = False,
        residual: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(width, 1, 1, head_width)
        check_dropout(dropout)
        inner = width if head_width is None else head_width
        if residual and inner != width and not project_back:
            raise ArgumentError(
                f"a residual sum of widths {width} and {inner}",
                expected="equal widths",
                remedy="add project_back=True",
            )
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, inner, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias) if project_back else nn.Identity()
        self.residual, self.dropout = residual, dropout

    def forward(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch tokens out"]:
        """Attend among the tokens; (…, N, d), or (…, N, width) where projected back."""
        dropout = self.dropout if self.training else 0.0
        context = attention(*self.project(x), mask=mask, causal=causal, dropout=dropout)
        return x + self.output(context) if self.residual else self.output(context)

    def project(self, x: Float[Tensor, "*batch tokens width"]) -> Heads:
        """Query, key and value of each token, (…, N, d) each."""
        check_tokens(x, self.query.in_features, axes=(2, 3))
        return Heads(self.query(x), self.key(x), self.value(x))

    def steps(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
    ) -> Steps:
        """What `forward` computes up to the context, every intermediate kept."""
        return steps(*self.project(x), mask=mask, causal=causal)


class CausalAttention(SelfAttention):
    """Self-attention in which no token sees a later one, with dropout on the weights.

    Sources: documents 002 and 003, after the attention chapter of Raschka's *Build a Large
    Language Model (From Scratch)*; Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3.

    Args:
        width: of the tokens' vectors.
        head_width: d, of query, key and value; default `width`.
        bias: whether the projections have one.
        dropout: probability with which a weight is dropped, while training.

    >>> import torch
    >>> CausalAttention(3, 2).steps(torch.rand(3, 3)).weights.count_nonzero(dim=-1)
    tensor([1, 2, 3])
    """

    def __init__(
        self,
        width: int,
        head_width: int | None = None,
        *,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, head_width, bias=bias, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = True,
    ) -> Float[Tensor, "*batch tokens out"]:
        """Attend to the token itself and those before it, (…, N, d).

        With `causal=False` it is the same layer without its mask, to compare.
        """
        return super().forward(x, mask=mask, causal=causal)

    def steps(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = True,
    ) -> Steps:
        """What `forward` computes, every intermediate kept."""
        return super().steps(x, mask=mask, causal=causal)
