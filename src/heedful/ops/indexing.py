"""Indices into a table of scores (..., N, M), and checks that a tensor broadcasts to it."""

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


def indices(index: Index, size: int, what: str) -> Tensor:
    """Convert a slice, a list of indices or a boolean list to indices from 0.

    Args:
        index: a slice, whole numbers (negative ones count from the end), or `size` booleans.
        size: the length of the axis.
        what: the name of the axis for error messages.

    Raises:
        ArgumentError: an index outside the axis, or another type.

    >>> indices([True, False, True], 3, "key"), indices([-1, 0], 3, "key")
    (tensor([0, 2]), tensor([2, 0]))
    """
    try:
        if isinstance(index, slice):
            run = range(size)[index]
            stop = run.start + len(run) * run.step
            return torch.arange(run.start, stop, run.step, device="cpu")
        chosen = torch.atleast_1d(torch.as_tensor(index, device="cpu"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_indices(index, size, what) from error
    is_boolean = chosen.dtype == torch.bool
    is_integer = torch.can_cast(chosen.dtype, torch.long) or not len(chosen)
    if chosen.ndim > 1 or not is_integer or (is_boolean and len(chosen) != size):
        raise _no_indices(index, size, what)
    if is_boolean:
        return chosen.nonzero()[:, 0]
    chosen = chosen.long()
    outside = chosen[(chosen < -size) | (chosen >= size)]
    if len(outside):
        raise ArgumentError(
            f"{what} index {int(outside[0])}", expected=f"numbers from {-size} to {size - 1}"
        )
    return chosen % size if size else chosen


def evenly_spaced(size: int, count: int) -> Tensor:
    """Return at most `count` evenly spaced indices from 0 to size − 1, with both ends.

    They are computed as integers: with a default dtype of bfloat16, `linspace` would end at 260
    for an axis of 260 rows.

    >>> evenly_spaced(10, 4).tolist()
    [0, 3, 6, 9]
    """
    count = max(0, min(size, count))
    steps = torch.arange(count, dtype=torch.int64, device="cpu")
    return steps * (size - 1) // max(1, count - 1)


def of_heads(table: Tensor, heads: Index) -> Tensor:
    """Select heads of a table that broadcasts to (..., H, N, M); a shared table stays."""
    return table if table.ndim < 3 or table.shape[-3] == 1 else table[..., heads, :, :]


def check_broadcast(what: str, table: Tensor, shape: Shape) -> None:
    """Raise `ArgumentError` unless the table broadcasts to the scores' shape (..., N, M)."""
    fits = table.ndim <= len(shape) and all(
        actual in (1, expected)
        for actual, expected in zip(reversed(table.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ArgumentError(
            f"{what} of shape {tuple(table.shape)}",
            expected=f"a shape that broadcasts to the scores (..., queries, keys) = {tuple(shape)}",
            cause="axes in another order, or a (batch, keys) padding mask",
            remedy="insert axes of size 1 to broadcast, or use heedful.masks.Padding",
        )


def as_boolean(name: str, table: object) -> Tensor:
    """Return a boolean tensor as it is, or a tensor copy of a boolean NumPy array.

    Raises:
        ArgumentError: another type, or a tensor without axes.
    """
    if isinstance(table, np.ndarray) and table.dtype == np.bool_:
        table = torch.from_numpy(table.copy())
    if not isinstance(table, Tensor | np.ndarray):
        raise ArgumentError(
            f"{name} mask of type {type(table).__name__}",
            expected="a boolean tensor or NumPy array, True = may attend",
            remedy="torch.as_tensor converts a list",
        )
    if not isinstance(table, Tensor) or table.dtype != torch.bool:
        raise ArgumentError(
            f"{name} mask of type {table.dtype}",
            expected="torch.bool or NumPy's bool, True = may attend",
            cause="an additive mask",
            remedy="pass additive values as bias=, or mask != 0 where 1 means attend",
        )
    if table.ndim == 0:
        raise ArgumentError(f"{name} mask without axes", expected="an axis for the keys, (..., M)")
    return table


def check_integers(name: str, **numbers: object) -> None:
    """Raise `ArgumentError` for an argument that is neither a whole number nor None."""
    for argument, number in numbers.items():
        if number is not None and not isinstance(number, int):
            raise ArgumentError(f"{name}({argument}={number!r})", expected="a whole number")


def intersection(*ranges: range) -> range:
    """Return the intersection of ranges without a step."""
    first = max(run.start for run in ranges)
    return range(first, max(first, min(run.stop for run in ranges)))


def as_slice(run: range) -> slice:
    """Convert a range without a step to a slice."""
    return slice(run.start, run.stop)


def _no_indices(index: object, size: int, what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} indices {reprlib.repr(index)}",
        expected=f"a list of whole numbers, a boolean for each of the {size}, or a slice",
    )
