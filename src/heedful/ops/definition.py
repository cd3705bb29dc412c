"""Attention by its definition, a function for each step; the faster roads use the same ones.

The order is that of the paper (Vaswani et al. 2017, arXiv:1706.03762, section 3.2) and of every
model since: dot products → scale → bias → mask → softmax → weighted sum of the values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from heedful.ops.arguments import Arguments


def attend(arguments: Arguments) -> Tensor:
    """The context (..., N, value width)."""
    return context(weights(arguments), arguments)


def weights(arguments: Arguments) -> Tensor:
    """The weights (..., N, M), before dropout, in the type of the query."""
    masked = mask_scores(dot_products(arguments) * arguments.scale, arguments)
    return normalise(masked, arguments).to(arguments.query.dtype)


def dot_products(arguments: Arguments) -> Tensor:
    """query · key for every pair, (..., N, M), in float32 at the least."""
    query, key = arguments.query, per_query_head(arguments.key, arguments.groups)
    return in_precision(query, query) @ in_precision(key, query).transpose(-2, -1)


def mask_scores(scaled: Tensor, arguments: Arguments) -> Tensor:
    """The scaled scores with the bias added, and −inf where a pair may not attend."""
    if arguments.bias is not None:
        scaled = scaled + in_precision(arguments.bias, arguments.query)
    if arguments.mask is None:
        return scaled
    allowed = arguments.mask.crop(tuple(scaled.shape), device=scaled.device)
    return torch.where(allowed, scaled, float("-inf"))


def normalise(masked: Tensor, arguments: Arguments) -> Tensor:
    """Softmax over the keys: torch's own where every query is sure to see a key."""
    is_sure = arguments.bias is None and (
        arguments.mask is None or arguments.mask.leaves_every_row(arguments.shape)
    )
    return masked.softmax(dim=-1) if is_sure else softmax(masked)


def softmax(
    scores: Float[Tensor, "*lead queries keys"],
) -> Float[Tensor, "*lead queries keys"]:
    """Softmax over the keys, with zeros (and zero gradients) in rows that are −inf throughout.

    torch.softmax gives NaN there, which one padded row would spread through a whole model.

    >>> softmax(torch.tensor([[0.0, 0.0], [float("-inf"), float("-inf")]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    nothing = scores.isneginf().all(dim=-1, keepdim=True)
    return scores.masked_fill(nothing, 0.0).softmax(dim=-1).masked_fill(nothing, 0.0)


def context(weights: Tensor, arguments: Arguments) -> Tensor:
    """The values times their weights, added up, (..., N, value width); dropout comes before."""
    dropped = F.dropout(weights, arguments.dropout) if arguments.dropout else weights
    return dropped @ per_query_head(arguments.value, arguments.groups)


def per_query_head(tensor: Tensor, groups: int) -> Tensor:
    """Key heads repeated for the query heads that share them: head h uses key head h // groups."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=-3)


def in_precision(tensor: Tensor, query: Tensor) -> Tensor:
    """In the type in which scores are kept: that of the query, and float32 at the least."""
    return tensor.to(torch.promote_types(query.dtype, torch.float32))
