"""The one door to torch's scaled_dot_product_attention.

It brings every call to the form in which torch has a fused kernel (four axes, equal widths),
gives each argument on or converts it, and drops none. A structured mask (causal, window,
padding) is never made whole where that would be large: the door then goes by blocks of
queries, and leaves out the keys that no query of the block can see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch

from heedful.ops import by_definition
from heedful.ops.arguments import Arguments
from heedful.ops.dropping_out import with_dropout
from heedful.ops.masks import Causal, Dense, Mask

BLOCK = (
    512  # queries a block; smaller blocks skip more of a window, larger ones start fewer kernels
)
WHOLE = 1 << 20  # a mask of up to so many entries (1 MB) is made whole, in one kernel call
MAPPED = (functorch.TransformType.Vmap, functorch.TransformType.Jvp)

Listener: TypeAlias = Callable[[Arguments, Tensor], None]
_thread = threading.local()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener the arguments and the context of every call of this thread."""
    before = getattr(_thread, "listeners", ())
    _thread.listeners = (*before, listener)
    try:
        yield
    finally:
        _thread.listeners = before


def fused(arguments: Arguments) -> Tensor:
    """The context (..., N, value width) of checked arguments, by torch's kernels."""
    listeners = getattr(_thread, "listeners", ())
    if not listeners:
        return _attend(arguments)
    _thread.running = True
    try:
        context = _attend(arguments)
    finally:
        _thread.running = False
    for listener in listeners:
        listener(arguments, context)
    return context


def is_running() -> bool:
    """Whether a call that is listened to is under way in this thread."""
    return getattr(_thread, "running", False)


def _attend(arguments: Arguments) -> Tensor:
    if not arguments.query.is_cpu:
        return _attend_fused(arguments)
    if arguments.dropout:
        return with_dropout(arguments)
    if not _is_mapped():
        context = _attend_fused(arguments)
        if not _hides_nan(context, arguments):
            return context
    return by_definition.context(by_definition.weights(arguments), arguments)


def _is_mapped() -> bool:
    """Whether `torch.func.vmap` or `jvp` runs: torch's kernel for CPUs has no rule for them.

    It would be called for one element after the other, and what it gives could not be looked at.
    """
    if torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is None:
        return False
    return any(one.key() in MAPPED for one in functorch.get_interpreter_stack())


def _hides_nan(context: Tensor, arguments: Arguments) -> bool:
    """Whether torch's kernel for CPUs gave zeros where a query or a key is NaN.

    It does where there are fewer keys than its vectors have lanes: 8 or 16.
    """
    if arguments.shape[-1] >= 32 or not bool((context[..., :1] == 0).any()):
        return False
    return any(bool(tensor.isnan().any()) for tensor in arguments[:2])


def _attend_fused(arguments: Arguments) -> Tensor:
    if _is_ready(arguments):  # no detours, which cost as much as attending to a few keys
        return _by_structure(arguments, arguments)
    lead = arguments.shape[:-2]
    query, key, value = (four_axes(t, lead) for t in arguments[:3])
    width, value_width = query.shape[-1], value.shape[-1]
    query, key, value = (_widen(t, max(width, value_width)) for t in (query, key, value))
    whole = arguments._replace(query=query, key=key, value=value)
    context = _by_structure(whole, arguments)[..., :value_width]
    return context.reshape(*lead, *context.shape[-2:])


def _is_ready(arguments: Arguments) -> bool:
    """Whether the tensors have the fused kernels' form as they are."""
    query, key, value = (tensor.shape for tensor in arguments[:3])
    return (
        len(query) == len(key) == len(value) == 4
        and query[0] == key[0] == value[0]
        and query[3] == value[3]
    )


def _by_structure(four: Arguments, original: Arguments) -> Tensor:
    mask, shape = original.mask, original.shape
    if original.bias is None and (mask is None or _sees_everything(mask, shape)):
        return _sdpa(four, None)
    if original.bias is None and _is_top_left(mask, shape):
        return _sdpa(four, None, causal=True)
    if isinstance(mask, Dense) or mask is None or shape[-2] * shape[-1] <= WHOLE:
        return _sdpa(four, _table(original, slice(None), slice(None)))
    return _by_blocks(four, original, mask)


def _by_blocks(four: Arguments, original: Arguments, mask: Mask) -> Tensor:
    contexts = []
    for start in range(0, original.shape[-2], BLOCK):
        rows = range(start, min(start + BLOCK, original.shape[-2]))
        span = mask.span(rows, original.shape)
        queries, keys = slice(rows.start, rows.stop), slice(span.start, span.stop)
        block = four._replace(
            query=four.query[:, :, queries],
            key=four.key[:, :, keys],
            value=four.value[:, :, keys],
        )
        contexts.append(_sdpa(block, _table(original, queries, keys)))
    return torch.cat(contexts, dim=-2)


def _sdpa(four: Arguments, table: Tensor | None, causal: bool = False) -> Tensor:
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


def _table(original: Arguments, queries: slice, keys: slice) -> Tensor | None:
    """Mask and bias of a block as one table with four axes: boolean, or added to the scores."""
    allowed = None
    if original.mask is not None:
        allowed = original.mask.crop(original.shape, queries, keys, original.query.device)
    if original.bias is None:
        table = allowed
    else:
        bias = by_definition.in_precision(_crop(original.bias, queries, keys), original.query)
        table = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
    return None if table is None else four_axes(table, original.shape[:-2])


def _crop(bias: Tensor, queries: slice, keys: slice) -> Tensor:
    bias = torch.atleast_2d(bias)
    return bias[
        ...,
        queries if bias.shape[-2] > 1 else slice(None),
        keys if bias.shape[-1] > 1 else slice(None),
    ]


def four_axes(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(…, a, b) with `lead` axes before them as (batch, heads, a, b): the fused kernels' form."""
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
    """Zeros after the last axis: unequal widths would send torch to its unfused path."""
    missing = width - tensor.shape[-1]
    return F.pad(tensor, (0, missing)) if missing else tensor


def _sees_everything(mask: Mask, shape: tuple[int, ...]) -> bool:
    return isinstance(mask, Causal) and len(mask.span(range(1), shape)) == shape[-1]


def _is_top_left(mask: Mask | None, shape: tuple[int, ...]) -> bool:
    """Whether torch's own `is_causal`, query n sees keys m ≤ n, is this mask."""
    if not isinstance(mask, Causal):
        return False
    return mask.offset == 0 or (mask.offset is None and shape[-2] == shape[-1])
