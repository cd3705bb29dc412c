"""Many heads one after another: the plain form of `MultiHeadAttention`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.layers.array_inputs import takes_arrays
from heedful.layers.checks import check_tokens
from heedful.layers.multi_head import MultiHeadAttention
from heedful.layers.options import check_heads
from heedful.layers.single_head import SelfAttention
from heedful.ops.masks import Mask


class StackedHeads(nn.Module):
    """H heads, each a layer of its own, run in turn and joined: easy to read, slow to run.

    It reads tokens (N, width) or a batch of them; arrays give arrays.

    `MultiHeadAttention` computes the same in one product; `to_product` and `from_product` turn
    one into the other. Source: document 003 (after Raschka), its
    naive form.

    Args:
        width: the width of the tokens' vectors, in and out.
        heads: H.
        head_width: d; default width / H.
        bias: whether the projections to query, key and value have one.
        output_bias: whether the projection of the joined heads has one; default `bias`.
        dropout: on the weights, while training.

    Raises:
        ArgumentError: heads that do not divide the width.

    >>> stacked = StackedHeads(width=6, heads=3)
    >>> sentence = torch.rand(2, 5, 6)
    >>> one_product = stacked.to_product()
    >>> torch.allclose(stacked(sentence), one_product(sentence), atol=1e-6)
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
        """Each head attends on its own; their contexts side by side are projected together."""
        check_tokens(x, self.output.out_features, axes=(2, 3))
        contexts = [head(x, mask=mask, causal=causal) for head in self.heads]
        return self.output(torch.cat(contexts, dim=-1))

    def to_product(self) -> MultiHeadAttention:
        """The same heads, with the same weights, in one product."""
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
        """The heads of one product, with the same weights, one by one.

        Raises:
            ArgumentError: grouped keys or normalised queries, which the plain form has not.
        """
        if product.kv_heads != product.heads or not isinstance(product.query_norm, nn.Identity):
            raise ArgumentError(
                f"{product.heads} heads with {product.kv_heads} key heads and "
                f"{type(product.query_norm).__name__} on queries",
                expected="a key head for each head, and no norm",
                cause="StackedHeads is the form of document 003",
            )
        stacked = cls(
            product.output.out_features,
            product.heads,
            head_width=product.head_width,
            bias=product.projection.bias is not None,
            output_bias=product.output.bias is not None,
            dropout=product.dropout,
        )
        stacked.to(product.output.weight.device, product.output.weight.dtype).train(
            product.training
        )
        stacked.output.load_state_dict(product.output.state_dict())
        for name, rows in product.projection.state_dict().items():
            for part, own in zip(
                _projections(stacked), rows.split(product.head_width), strict=True
            ):
                part.load_state_dict({name: own}, strict=False)
        return stacked


def _projections(stacked: StackedHeads) -> list[nn.Linear]:
    """All queries, all keys, all values: in the order of the rows of the one product."""
    return [getattr(head, part) for part in ("query", "key", "value") for head in stacked.heads]
