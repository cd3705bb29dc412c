"""Tables of scores (..., N, M): which part of one an index means, and what broadcasts to it."""

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
    """A slice, a list of indices or a boolean for each place, as indices from 0.

    Raises:
        ArgumentError: an index outside the axis, or something that is no index.

    >>> indices([True, False, True], 3, "key"), indices([-1, 0], 3, "key")
    (tensor([0, 2]), tensor([2, 0]))
    """
    try:
        if isinstance(index, slice):
            these = range(size)[index]
            stop = these.start + len(these) * these.step
            return torch.arange(these.start, stop, these.step, device="cpu")
        chosen = torch.atleast_1d(torch.as_tensor(index, device="cpu"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_indices(index, size, what) from error
    is_boolean = chosen.dtype == torch.bool
    is_whole = torch.can_cast(chosen.dtype, torch.long) or not len(chosen)
    if chosen.ndim > 1 or not is_whole or (is_boolean and len(chosen) != size):
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


def evenly(size: int, count: int) -> Tensor:
    """At most `count` of the first `size` whole numbers, evenly spread, both ends among them.

    They are on the CPU and are whole numbers throughout, whatever type and device the process has
    made its default: in bfloat16 the last of 260 rows would be row 260.

    >>> evenly(10, 4).tolist()
    [0, 3, 6, 9]
    """
    count = max(0, min(size, count))
    steps = torch.arange(count, dtype=torch.int64, device="cpu")
    return steps * (size - 1) // max(1, count - 1)


def of_heads(table: Tensor, heads: Index) -> Tensor:
    """Some heads of a table that broadcasts to (..., H, N, M); all of it where heads share it."""
    return table if table.ndim < 3 or table.shape[-3] == 1 else table[..., heads, :, :]


def check_broadcast(what: str, table: Tensor, shape: Shape) -> None:
    """Refuse a table that does not broadcast to the shape (..., N, M) of the scores."""
    fits = table.ndim <= len(shape) and all(
        have in (1, want)
        for have, want in zip(reversed(table.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ArgumentError(
            f"{what} of shape {tuple(table.shape)}",
            expected=f"one that broadcasts to the scores (..., queries, keys) = {tuple(shape)}",
            cause="axes in another order, or a (batch, keys) padding mask",
            remedy="put axes of size 1 where it is the same, or use heedful.masks.Padding",
        )


def as_boolean(name: str, table: object) -> Tensor:
    """A boolean tensor, or a copy of a boolean NumPy array as one.

    Raises:
        ArgumentError: another type, or no axes.
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
        raise ArgumentError(f"{name} mask without axes", expected="one for the keys, (..., M)")
    return table


def check_whole(name: str, **numbers: object) -> None:
    """Refuse an argument that is neither a whole number nor None."""
    for argument, number in numbers.items():
        if number is not None and not isinstance(number, int):
            raise ArgumentError(f"{name}({argument}={number!r})", expected="a whole number")


def meeting(*ranges: range) -> range:
    """What all ranges without a step have in common."""
    first = max(one.start for one in ranges)
    return range(first, max(first, min(one.stop for one in ranges)))


def as_slice(run: range) -> slice:
    """A range as a slice."""
    return slice(run.start, run.stop)


def _no_indices(index: object, size: int, what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} indices {reprlib.repr(index)}",
        expected=f"a list of whole numbers, a boolean for each of the {size}, or a slice",
    )
