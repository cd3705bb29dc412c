"""Attention that drops weights, on a CPU: no fused kernel does, and torch's own way is slow.

Scores, scale, mask and bias are one product, over all leading axes at once: with small tensors
the time goes into the number of operations.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.ops.arguments import Arguments
from heedful.ops.by_definition import in_precision, mask_scores, normalise, per_query_head
from heedful.ops.masks import Causal


def with_dropout(arguments: Arguments) -> Tensor:
    """The context (..., N, value width) of checked arguments whose dropout is not 0."""
    lead, dtype = arguments.shape[:-2], arguments.query.dtype
    key = per_query_head(arguments.key, arguments.groups)
    value = per_query_head(arguments.value, arguments.groups)
    queries, keys = (
        _one_axis(in_precision(t, arguments.query), lead) for t in (arguments.query, key)
    )
    masked = torch.baddbmm(
        _table(arguments, queries.dtype), queries, keys.transpose(1, 2), alpha=arguments.scale
    )
    weights = normalise(masked, arguments).to(dtype)
    context = F.dropout(weights, arguments.dropout) @ _one_axis(value, lead)
    return context.reshape(*lead, *context.shape[-2:])


def _table(arguments: Arguments, dtype: torch.dtype) -> Tensor:
    """What is added to the scaled scores: the bias, and −inf where a pair may not attend."""
    N, M = arguments.shape[-2:]
    if arguments.bias is None and type(arguments.mask) is Causal:
        return _causal(arguments.mask, N, M, dtype)
    nothing = arguments.query.new_zeros((), dtype=dtype).expand(arguments.shape)
    return mask_scores(nothing, arguments).reshape(-1, N, M)


@lru_cache(maxsize=4)
def _causal(mask: Causal, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """Kept, for every layer in every step of a training adds the same one."""
    with torch.inference_mode(False), torch.no_grad():
        allowed = mask.crop((queries, keys), device="cpu")
        table = torch.zeros(queries, keys, dtype=dtype, device="cpu")
        return table.masked_fill_(~allowed, float("-inf"))


def _one_axis(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(..., a, b) as (product of the leading axes, a, b)."""
    last = tensor.shape[-2:]
    return tensor.expand(*lead, *last).reshape(-1, *last)
