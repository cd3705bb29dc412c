"""Decorators that let the methods of a layer also accept a single sequence or NumPy arrays."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.ops.numpy_arrays import as_arrays, as_tensors, has_array

P = ParamSpec("P")
R = TypeVar("R")
ARRAYS = ("x", "memory", "mask")  # the arguments that may be arrays


def takes_arrays(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a layer's method to accept NumPy arrays and return arrays, without gradients.

    If the layer's weights and the arrays differ in type, the layer computes in the wider type, as
    NumPy does: float64 arrays give a float64 result.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if not has_array(arguments, keywords):
            return method(*arguments, **keywords)
        bound = signature.bind(*arguments, **keywords).arguments
        layer = cast(nn.Module, bound.pop("self"))
        with torch.no_grad():
            return as_arrays(_call(layer, method, bound, as_tensors(bound, ARRAYS)))

    return call


def _call(
    layer: nn.Module, method: Callable, arguments: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Any:
    """Call a layer's method with tensors and weights converted to the widest of their types."""
    weights = list(layer.parameters())
    dtypes = [tensor.dtype for tensor in (*weights, tensors["x"])]
    widest = functools.reduce(torch.promote_types, dtypes)
    device = next((weight.device for weight in weights), torch.device("cpu"))
    inputs = {
        name: tensor.to(device, widest if tensor.is_floating_point() else None)
        for name, tensor in tensors.items()
    }
    if any(weight.dtype != widest for weight in weights):
        layer = copy.deepcopy(layer).to(widest)
    return method(layer, **{**arguments, **inputs})


def takes_unbatched(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method that takes a batch (B, N, width) to also accept a sequence (N, width).

    The method then runs on a batch of one sequence, so masks and caches work as for a batch.
    """

    @functools.wraps(method)
    def call(layer: nn.Module, x: Tensor, *others: Any, **named: Any) -> Any:
        batch = _batch_of_one(x)
        if batch is x:
            return run(layer, x, *others, **named)
        others = tuple(_batch_of_one(other) for other in others)
        if "memory" in named:
            named["memory"] = _batch_of_one(named["memory"])
        result = run(layer, batch, *others, **named)
        return result[0] if isinstance(result, Tensor) else type(result)(*(t[0] for t in result))

    run = cast(Callable[..., Any], method)
    return cast(Callable[P, R], call)


def _batch_of_one(value: Any) -> Any:
    """Return a sequence as a batch; anything else unchanged."""
    return value[None] if isinstance(value, Tensor) and value.ndim == 2 else value
