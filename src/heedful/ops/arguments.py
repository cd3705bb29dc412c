"""Checks of the arguments of attention.

Sizes: H query heads, G key heads (H = r·G), N queries, M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import check_broadcast
from heedful.ops.masks import Causal, Dense, Mask

Result = TypeVar("Result")
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Arguments(NamedTuple):
    """Checked arguments of attention.

    `mask` includes the causal mask, if `causal` was passed. `scale` is never None. `shape` is the
    shape of the scores, (..., N, M), after all leading axes are broadcast.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Tensor | None
    scale: float
    dropout: float
    shape: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Return r = H / G, the number of query heads that share a key head."""
        return self.query.shape[-3] // self.key.shape[-3] if self.query.ndim >= 4 else 1


def check(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any,
    bias: Any,
    causal: bool,
    scale: float | None,
    dropout: float,
) -> Arguments:
    """Check the arguments of `attention` or `steps`, and apply their defaults.

    Raises:
        ArgumentError: an argument has a wrong type or is out of range; tensors differ in dtype,
            device or number of axes; their sizes do not match; a mask or bias does not broadcast.
    """
    _check_tensors(query, key, value)
    shape = _score_shape(query, key, value)
    check_dropout(dropout)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    if not math.isfinite(_number("scale", scale)):
        raise ArgumentError(f"scale={scale}", expected="a finite number")
    if bias is not None:
        _check_tensor("bias", bias)
        if not bias.is_floating_point():
            raise ArgumentError(
                f"bias of type {bias.dtype}",
                expected="floating-point numbers, added to the scores",
                cause="a boolean mask",
                remedy="pass it as mask=",
            )
        check_broadcast("bias", bias, shape)
        _check_device("bias", bias.device, query)
    mask = _mask(mask, causal)
    if mask is not None:
        mask.check(shape)
        _check_device("mask", mask.device, query)
    return Arguments(query, key, value, mask, bias, float(scale), dropout, shape)


def check_dropout(dropout: float) -> None:
    """Raise `ArgumentError` unless 0 ≤ dropout < 1."""
    if not 0.0 <= _number("dropout", dropout) < 1.0:
        raise ArgumentError(f"dropout={dropout}", expected="a probability, 0 ≤ dropout < 1")


def _number(name: str, number: Any) -> float:
    """Convert a Python or NumPy number, or a tensor with one element, to a float."""
    try:
        return float(number)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}={number!r}", expected="a finite number") from error


def _mask(mask: Tensor | Mask | None, causal: bool) -> Mask | None:
    if isinstance(mask, Tensor):
        mask = Dense(mask)
    if mask is not None and not isinstance(mask, Mask):
        raise ArgumentError(
            f"mask of type {type(mask).__name__}",
            expected="a boolean tensor or a mask such as heedful.masks.Causal()",
        )
    if not causal:
        return mask
    return Causal() if mask is None else Causal() & mask


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in zip(("query", "key", "value"), (query, key, value), strict=True):
        _check_tensor(name, tensor)
        if tensor.dtype not in TYPES:
            raise ArgumentError(
                f"{name} of type {tensor.dtype}",
                expected="float16, bfloat16, float32 or float64",
                cause="token ids where their embeddings were meant",
                remedy="embed the ids first, or call .float()",
            )
        if (tensor.dtype, tensor.device) != (query.dtype, query.device):
            raise ArgumentError(
                f"{name} is {tensor.dtype} on {tensor.device}",
                expected=f"{query.dtype} on {query.device}, like the query",
                remedy="convert with .to(query)",
            )


def _check_tensor(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"{name} of type {type(tensor).__name__}",
            expected="a torch tensor"
            + (" or a NumPy array" if name == "query" else ", like the query"),
            remedy="torch.as_tensor converts arrays and lists",
        )


def _check_device(name: str, device: torch.device | None, query: Tensor) -> None:
    if device is not None and device != query.device:
        raise ArgumentError(
            f"{name} on {device}",
            expected=f"{query.device}, the device of the query",
            remedy=f"create it there, or call .to({str(query.device)!r})",
        )


def _score_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not 2 <= query.ndim == key.ndim == value.ndim:
        raise ArgumentError(
            shapes,
            expected="the same number of axes in all three, at least (tokens, width)",
            remedy="add axes of size 1 with unsqueeze",
        )
    if query.shape[-1] != key.shape[-1] or query.shape[-1] == 0:
        raise ArgumentError(
            shapes,
            expected="query and key of the same width (last axis)",
            cause="query and key split into heads differently",
            remedy="project both to the same width",
        )
    if key.shape[-2] != value.shape[-2]:
        raise ArgumentError(
            shapes,
            expected="as many values as keys (axis −2)",
            cause="key and value taken from different sequences",
        )
    if query.ndim < 4:
        batch = _batch((query.shape[:-2], key.shape[:-2], value.shape[:-2]), shapes)
        return (*batch, query.shape[-2], key.shape[-2])
    heads, kv_heads, value_heads = query.shape[-3], key.shape[-3], value.shape[-3]
    if kv_heads != value_heads or 0 in (heads, kv_heads) or heads % kv_heads:
        raise ArgumentError(
            shapes,
            expected="equal numbers of key and value heads (axis −3) that divide the query's heads",
            cause="axes in the order (batch, tokens, heads, width)",
            remedy="transpose(1, 2) puts heads before tokens",
        )
    batch = _batch((query.shape[:-3], key.shape[:-3], value.shape[:-3]), shapes)
    return (*batch, heads, query.shape[-2], key.shape[-2])


def _batch(leading: tuple[torch.Size, ...], shapes: str) -> torch.Size:
    if leading[0] == leading[1] == leading[2]:  # torch.broadcast_shapes takes 50 µs
        return leading[0]
    try:
        return torch.broadcast_shapes(*leading)
    except RuntimeError:
        raise ArgumentError(
            shapes,
            expected="leading axes that are equal, or 1 to broadcast",
            cause="unequal batch sizes",
        ) from None


def in_float32(function: Callable[[Arguments], Result], arguments: Arguments) -> Result:
    """Call `function(arguments)`. Under CPU autocast, first convert the autocast dtype to float32.

    In bfloat16, the backward pass of torch's CPU kernel takes four times as long as in float32. The
    tensors are converted even where this kernel is not used, so that the dtype is always the same.
    """
    if arguments.query.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return function(arguments)
    dtype = torch.get_autocast_dtype("cpu")
    query, key, value = (t.float() if t.dtype == dtype else t for t in arguments[:3])
    with torch.autocast("cpu", enabled=False):
        return function(arguments._replace(query=query, key=key, value=value))
