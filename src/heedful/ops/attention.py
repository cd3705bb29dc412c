"""`heedful.attention`: scaled dot-product attention, optionally with its weights."""

from __future__ import annotations

from typing import Any, Literal, overload

from jaxtyping import Float

from heedful.ops.arguments import check, in_float32
from heedful.ops.definition import weights
from heedful.ops.dispatch import attend
from heedful.ops.masks import Mask
from heedful.ops.numpy_arrays import ARGUMENTS, Values, takes_arrays


@overload
def attention(
    query: Values,
    key: Values,
    value: Values,
    *,
    mask: Values | Mask | None = ...,
    bias: Values | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    dropout: float = ...,
    return_weights: Literal[False] = ...,
) -> Values: ...


@overload
def attention(
    query: Values,
    key: Values,
    value: Values,
    *,
    mask: Values | Mask | None = ...,
    bias: Values | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    dropout: float = ...,
    return_weights: Literal[True],
) -> tuple[Values, Values]: ...


@takes_arrays(*ARGUMENTS)
def attention(
    query: Float[Values, "*lead queries width"],
    key: Float[Values, "*key_lead keys width"],
    value: Float[Values, "*value_lead keys value_width"],
    *,
    mask: Values | Mask | None = None,
    bias: Values | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> Values | tuple[Values, Values]:
    """Scaled dot-product attention: softmax(query · keyᵀ · scale + bias, masked) · value.

    Source: Vaswani et al. 2017, *Attention is all you need* (arXiv:1706.03762), equation 1;
    grouped heads: Ainslie et al. 2023 (arXiv:2305.13245).

    Tensors in, tensors out; NumPy arrays in, NumPy arrays out. Query, key, value, mask and bias
    must be either all tensors or all arrays.

    Args:
        query: (N, d), (B, N, d), (B, H, N, d) or any leading axes.
        key: (M, d), with as many axes as the query. With four axes or more, the key may have G
            heads, where H = r·G; query head h uses key head h // r.
        value: (M, v), with as many axes and heads as the key; v may differ from d.
        mask: boolean, broadcasts to (..., N, M), True = may attend; or a mask of `heedful.masks`.
            The output of a query that may attend to no key is zero.
        bias: added to the scaled scores; broadcasts to (..., N, M).
        causal: query n may attend to keys 0 to n + M − N; the last query, to all keys.
        scale: factor of the scores; default 1/√d.
        dropout: probability of dropping a weight; use 0 for evaluation.
        return_weights: also return the weights, before dropout.

    Returns:
        The context (..., N, v); with `return_weights`, a tuple of context and weights (..., N, M).
        Both have the dtype of the inputs. Under CPU autocast, float32 replaces the autocast dtype.

    Raises:
        ArgumentError: shapes, dtypes or devices do not fit together, or a number is out of range.

    >>> import torch
    >>> query, key, value = torch.ones(2, 4), torch.ones(3, 4), torch.arange(6.).view(3, 2)
    >>> attention(query, key, value, causal=True, return_weights=True)
    (tensor([[1., 2.],
            [2., 3.]]), tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]]))
    >>> attention(query.numpy(), key.numpy(), value.numpy())
    array([[2., 3.],
           [2., 3.]], dtype=float32)
    """
    arguments = check(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, dropout=dropout
    )
    context: Any = attend(arguments)
    result: Any = (context, in_float32(weights, arguments)) if return_weights else context
    return result
