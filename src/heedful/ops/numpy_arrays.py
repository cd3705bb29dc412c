"""NumPy arrays in, NumPy arrays out: the same functions, for those who write NumPy.

An array and its tensor share their memory. Only what torch cannot read as it is (a reversed axis,
the other byte order, an array that is read-only) is copied.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.masks import Mask

P = ParamSpec("P")
R = TypeVar("R")
ARGUMENTS = ("query", "key", "value", "mask", "bias")  # of attention
Values = TypeVar("Values", Tensor, np.ndarray)  # all tensors or all arrays; the result is the same

FLOATS = (np.float32, np.float16, np.float64)


def takes_arrays(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of tensors take arrays for the arguments of these names, and give arrays back.

    Where one of them is an array, all must be.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            if not has_array(arguments, keywords):
                return function(*arguments, **keywords)
            given = signature.bind(*arguments, **keywords)
            given.arguments.update(as_tensors(given.arguments, names))
            return cast(R, as_arrays(function(*given.args, **given.kwargs)))

        return call

    return decorate


def has_array(arguments: Collection[object], keywords: Mapping[str, object]) -> bool:
    """Whether an array is among the arguments of a call."""
    return any(isinstance(value, np.ndarray) for value in (*arguments, *keywords.values()))


def as_tensors(given: Mapping[str, object], names: Collection[str]) -> dict[str, Tensor]:
    """The arguments of these names as tensors; numbers in the widest of their types, as in NumPy.

    Those that are None, or masks of ours, are left out.

    Raises:
        ArgumentError: a tensor or a list among the arrays, or an array of a type that cannot be
            meant.
    """
    wanted = {name: given[name] for name in names if given.get(name) is not None}
    tensors = {
        name: _tensor(name, value, *((np.bool_,) if name == "mask" else FLOATS))
        for name, value in wanted.items()
        if not isinstance(value, Mask)
    }
    # a bias decides no type, as among tensors
    numbers = {name for name, t in tensors.items() if t.is_floating_point() and name != "bias"}
    kinds = {tensors[name].dtype for name in numbers}
    widest = functools.reduce(torch.promote_types, kinds) if kinds else None
    return {name: t.to(widest) if name in numbers else t for name, t in tensors.items()}


def as_arrays(result: Any) -> Any:
    """A tensor as an array, a number as one of NumPy's; so each in a tuple or a dictionary."""
    if isinstance(result, Tensor):
        return result.detach().cpu().numpy()[()]
    if isinstance(result, dict):
        return {name: as_arrays(part) for name, part in result.items()}
    parts = [as_arrays(part) for part in result]
    return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)


def _tensor(name: str, given: Any, *types: type[np.generic]) -> Tensor:
    _check_kind(name, given)
    _check_type(name, given, types)
    array = given.astype(given.dtype.newbyteorder("="), copy=False)
    is_odd = any(stride < 0 or stride % array.itemsize for stride in array.strides)
    return torch.from_numpy(array.copy() if is_odd or not array.flags.writeable else array)


def _check_kind(name: str, given: object) -> None:
    if not isinstance(given, np.ndarray) or isinstance(given, np.ma.MaskedArray):
        mask = " or a mask such as heedful.masks.Causal()" if name == "mask" else ""
        raise ArgumentError(
            f"{name} of type {type(given).__name__}",
            expected=f"a NumPy array, as the others are{mask}",
            cause="arrays and tensors given together" if isinstance(given, Tensor) else None,
            remedy="give all as arrays or all as tensors; torch.from_numpy converts without a copy",
        )


def _check_type(name: str, array: np.ndarray, types: tuple[type[np.generic], ...]) -> None:
    if array.dtype.type in types:
        return
    if name == "mask":
        raise ArgumentError(
            f"mask array of type {array.dtype}",
            expected="bool, True = may attend",
            cause="an additive mask",
            remedy="pass additive values as bias=, or mask != 0 where 1 means attend",
        )
    names = [kind.__name__ for kind in types]
    raise ArgumentError(
        f"{name} array of type {array.dtype}",
        expected=" or ".join(names),
        remedy=f"convert with .astype(np.{names[0]})",
    )
