"""Indices into scores (..., N, M), and checks that a mask or bias broadcasts to the scores."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError

Index: TypeAlias = slice | Sequence[int] | Tensor
Shape: TypeAlias = Sequence[int]
ALL = slice(None)


def indices(index: Index, size: int, axis: str) -> Tensor:
    """Convert a slice, a list of indices or a boolean list to non-negative indices.

    Args:
        index: a slice, whole numbers (negative ones count from the end), or `size` booleans.
        size: the length of the axis.
        axis: the name of the axis for error messages.

    Raises:
        ArgumentError: an index outside the axis, another number of booleans, or another type.

    >>> indices([True, False, True], 3, "key"), indices([-1, 0], 3, "key")
    (tensor([0, 2]), tensor([2, 0]))
    """
    try:
        if isinstance(index, slice):
            run = range(size)[index]
            stop = run.start + len(run) * run.step
            return torch.arange(run.start, stop, run.step, device="cpu")
        result = torch.atleast_1d(torch.as_tensor(index, device="cpu"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise _index_error(index, size, axis) from error
    is_boolean = result.dtype == torch.bool
    is_integer = torch.can_cast(result.dtype, torch.long) or not len(result)
    if result.ndim > 1 or not is_integer or (is_boolean and len(result) != size):
        raise _index_error(index, size, axis)
    if is_boolean:
        return result.nonzero()[:, 0]
    result = result.long()
    outside = result[(result < -size) | (result >= size)]
    if len(outside):
        raise ArgumentError(
            f"{axis} index {int(outside[0])}", expected=f"numbers from {-size} to {size - 1}"
        )
    return result % size if size else result


def evenly_spaced(size: int, count: int) -> Tensor:
    """Return at most `count` evenly spaced indices from 0 to size − 1, with both ends if count ≥ 2.

    Integer arithmetic is exact; `linspace` in bfloat16 would round the last of 260 indices to 260.

    >>> evenly_spaced(10, 4).tolist()
    [0, 3, 6, 9]
    """
    count = max(0, min(size, count))
    steps = torch.arange(count, dtype=torch.int64, device="cpu")
    return steps * (size - 1) // max(1, count - 1)


def of_heads(table: Tensor, heads: Index) -> Tensor:
    """Select heads of a table that broadcasts to (..., H, N, M), if it has an axis of heads."""
    return table if table.ndim < 3 or table.shape[-3] == 1 else table[..., heads, :, :]


def crop_table(table: Tensor, rows: Tensor | slice, columns: Tensor | slice = ALL) -> Tensor:
    """Select queries and keys of a table that broadcasts to (..., N, M), where it has them."""
    table = torch.atleast_2d(table)
    table = table if table.shape[-2] == 1 else table[..., rows, :]
    return table if table.shape[-1] == 1 else table[..., columns]


def check_broadcast(name: str, table: Tensor, shape: Shape) -> None:
    """Raise `ArgumentError` unless the table broadcasts to the scores' shape (..., N, M)."""
    fits = table.ndim <= len(shape) and all(
        actual in (1, expected)
        for actual, expected in zip(reversed(table.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ArgumentError(
            f"{name} of shape {tuple(table.shape)}",
            expected=f"a shape that broadcasts to the scores (..., queries, keys) = {tuple(shape)}",
            cause="axes in another order, or a (batch, keys) padding mask",
            remedy="insert axes of size 1 to broadcast, or use heedful.masks.Padding",
        )


def as_boolean(name: str, table: object) -> Tensor:
    """Return a boolean tensor unchanged, or copy a boolean NumPy array to a tensor.

    Raises:
        ArgumentError: another type, or a tensor without axes.
    """
    if isinstance(table, np.ndarray) and table.dtype == np.bool_:
        table = torch.from_numpy(table.copy())
    if not isinstance(table, Tensor) or table.dtype != torch.bool:
        raise ArgumentError(
            f"{name} mask of type {getattr(table, 'dtype', type(table).__name__)}",
            expected="a tensor of torch.bool or a NumPy array of bool, True = may attend",
            cause="an additive mask, or a list",
            remedy="pass additive values as bias=; if 1 means attend, pass mask != 0",
        )
    if table.ndim == 0:
        raise ArgumentError(f"{name} mask without axes", expected="an axis for the keys, (..., M)")
    return table


def check_integers(name: str, **numbers: object) -> None:
    """Raise `ArgumentError` for an argument that is neither a whole number nor None."""
    for argument, number in numbers.items():
        if number is not None and not isinstance(number, int):
            raise ArgumentError(f"{name}({argument}={number!r})", expected="a whole number")


def check_index(name: str, index: int, size: int) -> int:
    """Return the index; raise `ArgumentError` unless 0 ≤ index < size."""
    if not 0 <= index < size:
        expected = f"0 to {size - 1}" if size > 1 else "0, the only one" if size else "none"
        raise ArgumentError(f"{name} {index}", expected=expected)
    return index


def intersection(*ranges: range) -> range:
    """Return the intersection of ranges without a step."""
    first = max(run.start for run in ranges)
    return range(first, max(first, min(run.stop for run in ranges)))


def as_slice(run: range) -> slice:
    """Convert a range without a step to a slice."""
    return slice(run.start, run.stop)


def _index_error(index: object, size: int, axis: str) -> ArgumentError:
    return ArgumentError(
        f"{axis} indices {reprlib.repr(index)}",
        expected=f"a list of whole numbers, a list of {size} booleans, or a slice",
    )
