"""What happens inside torch's own `multi_head_attention_forward`, that of nn.MultiheadAttention.

Seen from outside, torch's function is one call, with queries and keys that are not yet projected.
So torch's own code runs here with one name of it changed: it no longer hands itself over to the
mode that watches, and what it calls can be seen.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.recorder.capture import Seen
from heedful.recorder.recognise import mask_and_bias

FUNCTION = F.multi_head_attention_forward


def _opened() -> Callable[..., Any]:
    names = {**vars(F), "has_torch_function": lambda tensors: False}
    copy = types.FunctionType(FUNCTION.__code__, names, "opened", FUNCTION.__defaults__)
    copy.__kwdefaults__ = FUNCTION.__kwdefaults__
    return copy


def run(
    see: Callable[[Seen], None],
    translated: Callable[..., Seen],
    sdpa: set[Any],
    arguments: tuple,
    keywords: dict,
) -> Any:
    """Run a call as torch would, and tell of the attention in it.

    Args:
        see: is told.
        translated: makes of a call of SDPA, whose functions are `sdpa`, what is told.
        arguments, keywords: of `multi_head_attention_forward`.
    """
    inside = _Inside(sdpa, heads=arguments[4])
    with inside:
        result = _opened()(*arguments, **keywords)
    seen = translated(*inside.fused) if inside.fused else inside.weighed()
    seen.door = "nn.MultiheadAttention"
    seen.cross = not _is_same(*arguments[:2])
    padding = keywords.get("key_padding_mask")
    if padding is not None:
        keep = ~padding if padding.dtype == torch.bool else padding == 0
        seen.keep = torch.atleast_2d(keep)
    see(seen)
    return result


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two are one tensor, or views of the same part of it."""
    places = ((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in (one, other))
    return next(places) == next(places)


class _Inside(TorchFunctionMode):
    """Sees SDPA, or the two products between which the weights stand when they are asked for."""

    def __init__(self, sdpa: set[Any], heads: int) -> None:
        super().__init__()
        self.sdpa, self.heads = sdpa, heads
        self.fused: tuple = ()
        self.products: list[tuple[Tensor, ...]] = []
        self.dropout = 0.0

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        output = function(*arguments, **(keywords or {}))
        if function in self.sdpa:
            self.fused = (output, *arguments)
        elif function in (torch.bmm, torch.baddbmm):
            self.products.append((*arguments, output))
        elif function is F.dropout:
            self.dropout = (keywords or {}).get("p", 0.5)
        return output

    def weighed(self) -> Seen:
        """A call that made its weights: query · keyᵀ (+ mask), then weights · value."""
        (*added, query, key, _), (_, value, output) = self.products
        query, key, value, output = (
            tensor.unflatten(0, (-1, self.heads)) for tensor in (query, key.mT, value, output)
        )
        table = added[0] if added else None
        if table is not None:
            table = table.unflatten(0, (-1, self.heads)) if len(table) > 1 else table[None]
        mask, bias = mask_and_bias(table, query, key)
        return Seen(query, key, value, output, 1.0, mask, bias, dropout=self.dropout)
