"""A decorator that lets functions of tensors accept and return NumPy arrays.

An array and its tensor share memory, unless the type is converted or torch cannot share the array
(negative stride, foreign byte order, read-only memory).
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
ARGUMENTS = ("query", "key", "value", "mask", "bias")  # the tensor arguments of attention
Values = TypeVar("Values", Tensor, np.ndarray)  # arguments and results: all tensors or all arrays

FLOATS = (np.float32, np.float16, np.float64)


def takes_arrays(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of tensors to accept arrays for the named arguments and return arrays.

    If one of these arguments is an array, all must be arrays.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            if not has_array(arguments, keywords):
                return function(*arguments, **keywords)
            bound = signature.bind(*arguments, **keywords)
            bound.arguments.update(as_tensors(bound.arguments, names))
            return cast(R, as_arrays(function(*bound.args, **bound.kwargs)))

        return call

    return decorate


def has_array(arguments: Collection[object], keywords: Mapping[str, object]) -> bool:
    """Return whether an argument of a call is an array."""
    return any(isinstance(value, np.ndarray) for value in (*arguments, *keywords.values()))


def as_tensors(arguments: Mapping[str, object], names: Collection[str]) -> dict[str, Tensor]:
    """Convert the named arguments to tensors; convert floats to the widest of their types.

    Arguments that are None or a `Mask` are left out.

    Raises:
        ArgumentError: a tensor or a list among the arrays, or an array of an unsupported type.
    """
    values = {name: arguments[name] for name in names if arguments.get(name) is not None}
    tensors = {
        name: _tensor(name, value, *((np.bool_,) if name == "mask" else FLOATS))
        for name, value in values.items()
        if not isinstance(value, Mask)
    }
    # A bias may have a wider type than the query, so it does not widen the other arguments
    numbers = {name for name, t in tensors.items() if t.is_floating_point() and name != "bias"}
    kinds = {tensors[name].dtype for name in numbers}
    widest = functools.reduce(torch.promote_types, kinds) if kinds else None
    return {name: t.to(widest) if name in numbers else t for name, t in tensors.items()}


def as_arrays(result: Any) -> Any:
    """Convert a tensor, or each tensor of a tuple or dictionary, to an array or NumPy scalar."""
    if isinstance(result, Tensor):
        return result.detach().cpu().numpy()[()]
    if isinstance(result, dict):
        return {name: as_arrays(part) for name, part in result.items()}
    parts = [as_arrays(part) for part in result]
    return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)


def _tensor(name: str, value: Any, *types: type[np.generic]) -> Tensor:
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        mask = " or a mask such as heedful.masks.Causal()" if name == "mask" else ""
        raise ArgumentError(
            f"{name} of type {type(value).__name__}",
            expected=f"a NumPy array, like the other arguments{mask}",
            cause="a mix of arrays and tensors" if isinstance(value, Tensor) else None,
            remedy="pass all as arrays or all as tensors; torch.from_numpy converts without a copy",
        )
    if value.dtype.type in types:
        array = value.astype(value.dtype.newbyteorder("="), copy=False)
        is_odd = any(stride < 0 or stride % array.itemsize for stride in array.strides)
        return torch.from_numpy(array.copy() if is_odd or not array.flags.writeable else array)
    names = [kind.__name__ for kind in types]
    raise ArgumentError(
        f"{name} array of type {value.dtype}",
        expected=" or ".join(names),
        remedy="pass additive values as bias=; if 1 means attend, pass mask != 0"
        if name == "mask"
        else f"convert with .astype(np.{names[0]})",
    )
