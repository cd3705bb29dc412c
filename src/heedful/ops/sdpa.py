"""The one door to torch's scaled_dot_product_attention.

Tensors are brought to the form in which torch has a fused kernel: four axes, equal widths. Every
argument is given on as it is, or converted; none is dropped. A large mask that is known by its
structure (causal, window, padding) is never made whole: the kernel is called for one block of
queries after the other, and only with the keys that some query of the block can see.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.ops.arguments import Arguments
from heedful.ops.definition import in_precision
from heedful.ops.indexing import ALL
from heedful.ops.masks import Mask

# Queries of a block: with fewer, more of a window's hidden keys are skipped; with more, fewer
# kernels are started
BLOCK = 512


def in_form(arguments: Arguments) -> Arguments:
    """The same with query, key and value in the kernels' form; mask, bias and shape stay."""
    query, key, value = arguments[:3]
    if _has_form(query, key, value):  # bringing it there costs as much as attending to a few keys
        return arguments
    lead = arguments.shape[:-2]
    width = max(query.shape[-1], value.shape[-1])
    query, key, value = (_widen(four_axes(t, lead), width) for t in (query, key, value))
    return arguments._replace(query=query, key=key, value=value)


def as_asked(context: Tensor, four: Arguments, arguments: Arguments) -> Tensor:
    """The context of arguments that were brought to the form, with the axes that they had."""
    if four is arguments:
        return context
    *axes, width = *arguments.shape[:-1], arguments.value.shape[-1]
    return context[..., :width].reshape(*axes, width)


def call(four: Arguments, table: Tensor | None = None, causal: bool = False) -> Tensor:
    """The context of arguments in the kernels' form, and their table where they need one."""
    return F.scaled_dot_product_attention(
        four.query,
        four.key,
        four.value,
        attn_mask=table,
        dropout_p=four.dropout,
        is_causal=causal,
        scale=four.scale,
        enable_gqa=four.groups > 1,
    )


def by_blocks(four: Arguments, mask: Mask) -> Tensor:
    """The context, of one block of queries after the other."""
    N, contexts = four.shape[-2], []
    for start in range(0, N, BLOCK):
        rows = range(start, min(start + BLOCK, N))
        span = mask.span(rows, four.shape)
        queries, keys = slice(rows.start, rows.stop), slice(span.start, span.stop)
        block = four._replace(
            query=four.query[:, :, queries],
            key=four.key[:, :, keys],
            value=four.value[:, :, keys],
        )
        contexts.append(call(block, table(four, queries, keys)))
    return torch.cat(contexts, dim=-2)


def table(four: Arguments, queries: slice = ALL, keys: slice = ALL) -> Tensor | None:
    """Mask and bias of some queries and keys as one table with four axes.

    It is boolean, True = may attend, or where there is a bias added to the scores.
    """
    allowed = None
    if four.mask is not None:
        allowed = four.mask.crop(four.shape, queries, keys, four.query.device)
    if four.bias is None:
        one = allowed
    else:
        bias = in_precision(_crop(four.bias, queries, keys), four.query)
        one = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
    return None if one is None else four_axes(one, four.shape[:-2])


def four_axes(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """A tensor (..., a, b) whose leading axes broadcast to `lead`, as (batch, heads, a, b).

    The last axis of `lead` is of heads where there are two or more; the others are one batch.
    """
    axes = len(lead) + 2
    tensor = tensor.reshape(*[1] * (axes - tensor.ndim), *tensor.shape)
    if axes == 2:
        return tensor[None, None]
    batch = lead[:-1] if axes >= 4 else lead
    if any(tensor.shape[i] != 1 for i in range(len(batch))):
        tensor = tensor.expand(*batch, *tensor.shape[len(batch) :])
    if axes == 3:
        return tensor[:, None]
    return tensor.flatten(0, -4) if axes > 4 else tensor


def _has_form(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether tensors have four axes, one batch and one width."""
    asks, says, gives = query.shape, key.shape, value.shape
    return (
        len(asks) == len(says) == len(gives) == 4
        and asks[0] == says[0] == gives[0]
        and asks[3] == gives[3]
    )


def _widen(tensor: Tensor, width: int) -> Tensor:
    """Zeros after the last axis: unequal widths would send torch to its unfused path."""
    missing = width - tensor.shape[-1]
    return F.pad(tensor, (0, missing)) if missing else tensor


def _crop(bias: Tensor, queries: slice, keys: slice) -> Tensor:
    bias = torch.atleast_2d(bias)
    rows = queries if bias.shape[-2] > 1 else ALL
    columns = keys if bias.shape[-1] > 1 else ALL
    return bias[..., rows, columns]
