"""Multi-head attention as a list of single heads: the simple form of `MultiHeadAttention`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers.array_inputs import takes_arrays
from heedful.layers.checks import check_tokens
from heedful.layers.multi_head import MultiHeadAttention
from heedful.layers.option_names import check_heads
from heedful.layers.single_head import SelfAttention
from heedful.ops.masks import Mask


class StackedHeads(nn.Module):
    """H single-head layers that run one after the other: easy to read, slow to run.

    `MultiHeadAttention` computes the same output with one product; `to_product` and `from_product`
    convert one into the other. The input is (N, width) or (B, N, width), tensor or NumPy array.

    Source: document 003 (after Raschka), which calls this form naive.

    Args:
        width: of the input and the output.
        heads: H.
        head_width: d; default width / H.
        bias: whether the projections to query, key and value have a bias.
        output_bias: whether the output projection has a bias; default `bias`.
        dropout: on the weights, in training mode.

    Raises:
        ArgumentError: numbers of heads that `check_heads` refuses, or a dropout outside [0, 1).

    >>> stacked = StackedHeads(width=6, heads=3)
    >>> sentence = torch.rand(2, 5, 6)
    >>> product = stacked.to_product()
    >>> torch.allclose(stacked(sentence), product(sentence), atol=1e-6)
    True
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        bias: bool = False,
        output_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(width, heads, heads, head_width)
        inner = width // heads if head_width is None else head_width
        self.dropout = dropout
        self.heads = nn.ModuleList(
            SelfAttention(width, inner, bias=bias, dropout=dropout) for _ in range(heads)
        )
        self.output = nn.Linear(
            heads * inner, width, bias=bias if output_bias is None else output_bias
        )

    @takes_arrays
    def forward(
        self,
        x: Float[Tensor, "*batch tokens width"],
        *,
        mask: Tensor | Mask | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*batch tokens width"]:
        """Concatenate the contexts of all heads and project them to (…, N, width)."""
        check_tokens(x, self.output.out_features, axes=(2, 3))
        contexts = [head(x, mask=mask, causal=causal) for head in self.heads]
        return self.output(torch.cat(contexts, dim=-1))

    def to_product(self) -> MultiHeadAttention:
        """Return a `MultiHeadAttention` with the same weights."""
        first, *_ = parts = _projections(self)
        product = MultiHeadAttention(
            first.in_features,
            len(self.heads),
            head_width=first.out_features,
            bias=first.bias is not None,
            output_bias=self.output.bias is not None,
            dropout=self.dropout,
        )
        product.to(first.weight.device, first.weight.dtype).train(self.training)
        product.output.load_state_dict(self.output.state_dict())
        rows = {
            name: torch.cat([part.state_dict()[name] for part in parts])
            for name in first.state_dict()
        }
        product.projection.load_state_dict(rows)
        return product

    @classmethod
    def from_product(cls, product: MultiHeadAttention) -> StackedHeads:
        """Return the heads of a `MultiHeadAttention` as separate layers with the same weights.

        Raises:
            ArgumentError: grouped key heads or QK-norm, which `StackedHeads` does not support.
        """
        if product.kv_heads != product.heads or not isinstance(product.query_norm, nn.Identity):
            raise ArgumentError(
                f"{product.heads} heads with {product.kv_heads} key heads and "
                f"{type(product.query_norm).__name__} on queries",
                expected="a key head for each head, and no norm",
                cause="StackedHeads supports neither grouped key heads nor QK-norm",
            )
        stacked = cls(
            product.output.out_features,
            product.heads,
            head_width=product.head_width,
            bias=product.projection.bias is not None,
            output_bias=product.output.bias is not None,
            dropout=product.dropout,
        )
        weight = product.output.weight
        stacked.to(weight.device, weight.dtype).train(product.training)
        stacked.output.load_state_dict(product.output.state_dict())
        for name, rows in product.projection.state_dict().items():
            parts = rows.split(product.head_width)
            for projection, part in zip(_projections(stacked), parts, strict=True):
                projection.load_state_dict({name: part}, strict=False)
        return stacked


def _projections(stacked: StackedHeads) -> list[nn.Linear]:
    """Return all query, then all key, then all value layers: the order in `product.projection`."""
    return [getattr(head, part) for part in ("query", "key", "value") for head in stacked.heads]
