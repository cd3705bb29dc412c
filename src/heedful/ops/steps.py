"""`heedful.steps`: attention with all intermediate results, for reading, teaching and testing."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heedful.ops import definition
from heedful.ops.arguments import Arguments, check, in_float32
from heedful.ops.masks import Mask
from heedful.ops.numpy_arrays import ARGUMENTS, Values, takes_arrays


class Steps(NamedTuple):
    """The intermediate results of attention, in the order of computation.

    scores: query · keyᵀ, (..., N, M). `scores`, `scaled` and `masked` are float32 if the inputs are
        float16 or bfloat16, as in fused kernels.
    scaled: scores · scale, (..., N, M).
    masked: scaled + bias, and −inf for masked pairs, (..., N, M).
    weights: softmax(masked) before dropout, (..., N, M); zero for a query that may attend to no
        key. `weights` and `context` have the dtypes of the results of `heedful.attention`.
    context: weights (after dropout) · value, (..., N, v).

    All are tensors, or NumPy arrays if the inputs were arrays.
    """

    scores: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    context: Tensor


@takes_arrays(*ARGUMENTS)
def steps(
    query: Float[Values, "*lead queries width"],
    key: Float[Values, "*key_lead keys width"],
    value: Float[Values, "*value_lead keys value_width"],
    *,
    mask: Values | Mask | None = None,
    bias: Values | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Steps:
    """Compute attention and return every intermediate result.

    Arguments and errors are those of `heedful.attention`, without `return_weights`.

    Returns:
        `Steps(scores, scaled, masked, weights, context)`.

    >>> import torch
    >>> embeddings = torch.tensor([[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]])
    >>> steps(embeddings, embeddings, embeddings, causal=True, scale=1.0).weights
    tensor([[1.0000, 0.0000],
            [0.3680, 0.6320]])
    >>> steps(*[embeddings.numpy()] * 3, causal=True, scale=1.0).weights.round(4)
    array([[1.   , 0.   ],
           [0.368, 0.632]], dtype=float32)
    """
    arguments = check(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, dropout=dropout
    )
    return in_float32(_steps, arguments)


def _steps(arguments: Arguments) -> Steps:
    scores = definition.dot_products(arguments)
    scaled = scores * arguments.scale
    masked = definition.mask_scores(scaled, arguments)
    weights = definition.softmax(masked).to(arguments.query.dtype)
    context = definition.context(weights, arguments)
    return Steps(scores, scaled, masked, weights, context)
