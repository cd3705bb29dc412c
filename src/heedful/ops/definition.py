"""Attention without fused kernels, with one function for each step of its definition.

The steps, in order: dot products → scale → bias → mask → softmax → weighted sum of the values.

Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from heedful.ops.arguments import Arguments


def attend(arguments: Arguments) -> Tensor:
    """Return the context, (..., N, v)."""
    return context(weights(arguments), arguments)


def weights(arguments: Arguments) -> Tensor:
    """Return the weights before dropout, (..., N, M), in the dtype of the query."""
    masked = mask_scores(dot_products(arguments) * arguments.scale, arguments)
    return normalise(masked, arguments).to(arguments.query.dtype)


def dot_products(arguments: Arguments) -> Tensor:
    """Return query · key for every pair, (..., N, M), in float32 or float64."""
    query, key = arguments.query, per_query_head(arguments.key, arguments.groups)
    return upcast(query, query) @ upcast(key, query).transpose(-2, -1)


def mask_scores(scaled: Tensor, arguments: Arguments) -> Tensor:
    """Add the bias to the scaled scores, and set masked pairs to −inf."""
    if arguments.bias is not None:
        scaled = scaled + upcast(arguments.bias, arguments.query)
    if arguments.mask is None:
        return scaled
    allowed = arguments.mask.crop(tuple(scaled.shape), device=scaled.device)
    return torch.where(allowed, scaled, float("-inf"))


def normalise(masked: Tensor, arguments: Arguments) -> Tensor:
    """Apply torch's softmax over the keys, or `softmax` (below) if a row may be fully masked."""
    has_no_empty_row = arguments.bias is None and (
        arguments.mask is None or arguments.mask.has_no_empty_row(arguments.shape)
    )
    return masked.softmax(dim=-1) if has_no_empty_row else softmax(masked)


def softmax(scores: Float[Tensor, "*lead queries keys"]) -> Float[Tensor, "*lead queries keys"]:
    """Apply softmax over the keys; a fully masked row gets zero weights and zero gradients.

    torch.softmax returns NaN for such a row, and NaN spreads to every later layer.

    >>> softmax(torch.tensor([[0.0, 0.0], [float("-inf"), float("-inf")]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    empty = scores.isneginf().all(dim=-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)


def context(weights: Tensor, arguments: Arguments) -> Tensor:
    """Apply dropout to the weights and return the weighted sum of the values, (..., N, v)."""
    weights = F.dropout(weights, arguments.dropout) if arguments.dropout else weights
    return weights @ per_query_head(arguments.value, arguments.groups)


def per_query_head(tensor: Tensor, groups: int) -> Tensor:
    """Repeat each key head for its query heads: query head h uses key head h // groups."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=-3)


def upcast(tensor: Tensor, query: Tensor) -> Tensor:
    """Convert a tensor to the dtype of the scores: the query's dtype, but at least float32."""
    return tensor.to(torch.promote_types(query.dtype, torch.float32))
