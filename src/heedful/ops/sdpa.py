"""The only module that calls torch's scaled_dot_product_attention (SDPA).

Tensors are reshaped to the form for which torch has fused kernels: four axes, equal widths. Every
argument is passed on or converted; none is dropped. A large structured mask (causal, window,
padding) is never built in full: the kernel runs on one block of queries after the other, with only
the keys that some query of the block may attend to.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.ops.arguments import Arguments
from heedful.ops.definition import upcast
from heedful.ops.indexing import ALL, crop_table
from heedful.ops.masks import Mask

BLOCK = 512  # queries: smaller blocks skip more masked keys, larger blocks start fewer kernels


def to_kernel_form(arguments: Arguments) -> Arguments:
    """Reshape query, key and value to four axes and equal widths; keep mask, bias and shape."""
    query, key, value = arguments[:3]
    q, k, v = query.shape, key.shape, value.shape
    if len(q) == len(k) == len(v) == 4 and q[0] == k[0] == v[0] and q[3] == v[3]:
        return arguments  # a needless conversion takes as long as a small call
    lead = arguments.shape[:-2]
    width = max(query.shape[-1], value.shape[-1])
    query, key, value = (_widen(four_axes(t, lead), width) for t in (query, key, value))
    return arguments._replace(query=query, key=key, value=value)


def restore_axes(context: Tensor, four: Arguments, arguments: Arguments) -> Tensor:
    """Reshape the context of `to_kernel_form(arguments)` to the axes of the arguments."""
    if four is arguments:
        return context
    *axes, width = *arguments.shape[:-1], arguments.value.shape[-1]
    return context[..., :width].reshape(*axes, width)


def call(four: Arguments, table: Tensor | None = None, causal: bool = False) -> Tensor:
    """Call SDPA with arguments in kernel form, and with the `table` of mask and bias, if any."""
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


def call_in_blocks(four: Arguments, mask: Mask) -> Tensor:
    """Call SDPA on one block of queries after the other, and join the contexts."""
    N, contexts = four.shape[-2], []
    for start in range(0, N, BLOCK):
        rows = range(start, min(start + BLOCK, N))
        span = mask.span(rows, four.shape)
        queries, keys = slice(rows.start, rows.stop), slice(span.start, span.stop)
        block = four._replace(
            query=four.query[:, :, queries], key=four.key[:, :, keys], value=four.value[:, :, keys]
        )
        contexts.append(call(block, table(four, queries, keys)))
    return torch.cat(contexts, dim=-2)


def table(four: Arguments, queries: slice = ALL, keys: slice = ALL) -> Tensor | None:
    """Combine mask and bias of some queries and keys in one table with four axes.

    Without a bias the table is boolean, True = may attend; with a bias it is added to the scores.
    """
    combined = allowed = None
    if four.mask is not None:
        combined = allowed = four.mask.crop(four.shape, queries, keys, four.query.device)
    if four.bias is not None:
        bias = upcast(crop_table(four.bias, queries, keys), four.query)
        combined = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
    return None if combined is None else four_axes(combined, four.shape[:-2])


def four_axes(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Reshape a tensor (..., a, b) to (B, H, a, b); its leading axes must broadcast to `lead`.

    If `lead` has two axes or more, the last of these is the heads; the others are flattened to B.
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


def _widen(tensor: Tensor, width: int) -> Tensor:
    """Pad the last axis with zeros, since torch has no fused kernel for unequal widths."""
    missing = width - tensor.shape[-1]
    return F.pad(tensor, (0, missing)) if missing else tensor
