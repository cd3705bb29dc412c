"""What a layer may be given beside a batch of tensors: one sequence, and NumPy arrays."""

from __future__ import annotations

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
    """Let a layer's method take NumPy arrays, and give arrays back, without gradients.

    Where the layer's weights and the arrays are of two types it computes in the wider, as NumPy
    does: float64 stays float64.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if not has_array(arguments, keywords):
            return method(*arguments, **keywords)
        given = signature.bind(*arguments, **keywords).arguments
        layer = cast(nn.Module, given.pop("self"))
        with torch.no_grad():
            return as_arrays(_computed(layer, method, given, as_tensors(given, ARRAYS)))

    return call


def _computed(
    layer: nn.Module, method: Callable, given: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Any:
    """What a layer's method makes of tensors, with its weights in the type of both."""
    weights = dict(layer.named_parameters())
    kinds = [tensor.dtype for tensor in (*weights.values(), tensors["x"])]
    widest = functools.reduce(torch.promote_types, kinds)
    device = next((weight.device for weight in weights.values()), torch.device("cpu"))
    placed = {
        name: tensor.to(device, widest if tensor.is_floating_point() else None)
        for name, tensor in tensors.items()
    }
    wider = {f"layer.{n}": w.to(widest) for n, w in weights.items() if w.dtype != widest}
    if not wider:
        return method(layer, **{**given, **placed})
    called = _Method(layer, method)
    return torch.func.functional_call(called, wider, (), {**given, **placed})


class _Method(nn.Module):
    """A method of a layer as a module, so that it can run with other weights for once."""

    def __init__(self, layer: nn.Module, method: Callable) -> None:
        super().__init__()
        self.layer, self.method = layer, method

    def forward(self, **given: Any) -> Any:
        """What the method gives."""
        return self.method(self.layer, **given)


def takes_one(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method that reads a batch (B, N, width) read one sequence (N, width), as it is.

    It is a batch of one on the way, so that its masks and its caches mean the same.
    """

    @functools.wraps(method)
    def call(layer: nn.Module, x: Tensor, *others: Any, **named: Any) -> Any:
        if not _is_one(x):
            return run(layer, x, *others, **named)
        others = tuple(_batch_of_one(other) for other in others)
        if "memory" in named:
            named["memory"] = _batch_of_one(named["memory"])
        result = run(layer, x[None], *others, **named)
        return result[0] if isinstance(result, Tensor) else type(result)(*(t[0] for t in result))

    run = cast(Callable[..., Any], method)
    return cast(Callable[P, R], call)


def _is_one(given: object) -> bool:
    return isinstance(given, Tensor) and given.ndim == 2


def _batch_of_one(given: Any) -> Any:
    return given[None] if _is_one(given) else given
