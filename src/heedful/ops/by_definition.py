"""Attention step by step, every intermediate kept: for reading, teaching and testing.

The order is that of the paper (Vaswani et al. 2017, arXiv:1706.03762, section 3.2) and of every
model since: dot products → scale → bias → mask → softmax → weighted sum of the values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from heedful.ops import arrays
from heedful.ops.arguments import Arguments, check
from heedful.ops.arrays import Values
from heedful.ops.masks import Mask


class Steps(NamedTuple):
    """Every intermediate of attention, by name.

    `scores`, `scaled` and `masked` (N × M, with the leading axes before them) are float32 where
    the inputs are float16 or bfloat16, as in fused kernels; `weights` and `context` have the
    type of the inputs. `masked` has the bias added and −inf where a pair may not attend.
    `weights` are those before dropout; a row that may attend to nothing is zero. Where arrays
    were given, these are arrays.
    """

    scores: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    context: Tensor


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
    """Attention with every intermediate kept; the arguments are those of `heedful.attention`.

    Returns:
        `Steps(scores, scaled, masked, weights, context)`.

    >>> embeddings = torch.tensor([[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]])
    >>> steps(embeddings, embeddings, embeddings, causal=True, scale=1.0).weights
    tensor([[1.0000, 0.0000],
            [0.3680, 0.6320]])
    >>> steps(*[embeddings.numpy()] * 3, causal=True, scale=1.0).weights.round(4)
    array([[1.   , 0.   ],
           [0.368, 0.632]], dtype=float32)
    """
    if isinstance(query, np.ndarray):
        return Steps(
            *arrays.through(
                steps,
                query,
                key,
                value,
                mask=mask,
                bias=bias,
                causal=causal,
                scale=scale,
                dropout=dropout,
            )
        )
    arguments = check(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, dropout=dropout
    )
    scores = dot_products(arguments)
    scaled = scores * arguments.scale
    masked = mask_scores(scaled, arguments)
    weights = softmax(masked).to(query.dtype)
    return Steps(scores, scaled, masked, weights, context(weights, arguments))


def weights(arguments: Arguments) -> Tensor:
    """The weights (..., N, M) alone, before dropout, in the type of the query."""
    masked = mask_scores(dot_products(arguments) * arguments.scale, arguments)
    return normalise(masked, arguments).to(arguments.query.dtype)


def normalise(masked: Tensor, arguments: Arguments) -> Tensor:
    """Softmax over the keys; its care for empty rows is spared where none can be."""
    every = arguments.bias is None and (
        arguments.mask is None or arguments.mask.leaves_every_row(arguments.shape)
    )
    return masked.softmax(dim=-1) if every else softmax(masked)


def context(weights: Tensor, arguments: Arguments) -> Tensor:
    """The values, weighted and summed, (..., N, value width); some weights are dropped first."""
    dropped = F.dropout(weights, arguments.dropout) if arguments.dropout else weights
    return dropped @ per_query_head(arguments.value, arguments.groups)


def dot_products(arguments: Arguments) -> Tensor:
    """query · key for every pair, (..., N, M), in float32 at the least."""
    query, key = arguments.query, per_query_head(arguments.key, arguments.groups)
    return in_precision(query, query) @ in_precision(key, query).transpose(-2, -1)


def mask_scores(scaled: Tensor, arguments: Arguments) -> Tensor:
    """The scaled scores with the bias added, and −inf where the mask says no."""
    if arguments.bias is not None:
        scaled = scaled + in_precision(arguments.bias, arguments.query)
    if arguments.mask is None:
        return scaled
    allowed = arguments.mask.crop(tuple(scaled.shape), device=scaled.device)
    return torch.where(allowed, scaled, float("-inf"))


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


def in_precision(tensor: Tensor, query: Tensor) -> Tensor:
    """In the type in which scores are kept: that of the query, and float32 at the least."""
    return tensor.to(torch.promote_types(query.dtype, torch.float32))


def per_query_head(tensor: Tensor, groups: int) -> Tensor:
    """Key heads repeated for the query heads that share them: head h uses key head h // groups."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=-3)
