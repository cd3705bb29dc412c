"""What happens inside torch's own `multi_head_attention_forward`, that of nn.MultiheadAttention.

Seen from outside, torch's function is one call, with queries and keys that are not yet projected.
So torch's own code runs here with one name of it changed: it no longer hands itself over to the
mode that watches, and what it calls can be seen.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.ops.masks import Causal
from heedful.recorder.seen import Real, See, Seen

FUNCTION = F.multi_head_attention_forward


def _opened() -> Callable[..., Any]:
    names = {**vars(F), "has_torch_function": lambda tensors: False}
    copy = types.FunctionType(FUNCTION.__code__, names, "opened", FUNCTION.__defaults__)
    copy.__kwdefaults__ = FUNCTION.__kwdefaults__
    return copy


def run(see: See, sdpa: set[Any], arguments: tuple, keywords: dict) -> Any:
    """Run a call as torch would, and tell of the attention in it.

    Args:
        see: is told.
        sdpa: the functions that are SDPA.
        arguments, keywords: of `multi_head_attention_forward`.
    """
    given = inspect.signature(FUNCTION).bind(*arguments, **keywords).arguments
    inside = _Inside(sdpa, given["num_heads"])
    with inside:
        result = _opened()(*arguments, **keywords)
    see(_translated, inside, given)
    return result


def _translated(inside: _Inside, given: dict[str, Any]) -> Seen:
    seen = inside.fused() if inside.call else inside.weighed()
    seen.door = "nn.MultiheadAttention"
    seen.cross = not _is_same(given["query"], given["key"])
    padding = given.get("key_padding_mask")
    if padding is not None:
        keep = torch.atleast_2d(~padding if padding.dtype == torch.bool else padding == 0)
        # keys of the module's own, such as add_bias_kv's, stand after those of the text
        keys = F.pad(keep, (0, seen.shape[-1] - keep.shape[1]), value=True)
        seen.real = Real(keys, None if seen.cross else keep)
    return seen


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two are one tensor, or the same numbers, as where a norm was called twice."""
    if one.shape != other.shape:
        return False
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in (one, other)]
    return places[0] == places[1] or torch.equal(one, other)


class _Inside(TorchFunctionMode):
    """Sees SDPA, or the two products between which the weights stand when they are asked for."""

    def __init__(self, sdpa: set[Any], heads: int) -> None:
        super().__init__()
        self.sdpa, self.heads = sdpa, heads
        self.call: tuple = ()
        self.products: list[tuple[Tensor, ...]] = []
        self.dropout = 0.0

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        output = function(*arguments, **(keywords or {}))
        if function in self.sdpa:
            self.call = (output, *arguments)
        elif function in (torch.bmm, torch.baddbmm):
            self.products.append((*arguments, output))
        elif function is F.dropout:
            self.dropout = (keywords or {}).get("p", 0.5)
        return output

    def fused(self) -> Seen:
        """A call of SDPA, with four axes."""
        output, query, key, value, mask, dropout, is_causal = self.call
        return Seen(
            query,
            key,
            value,
            output,
            query.shape[-1] ** -0.5,
            mask=Causal(0) if is_causal else mask,
            dropout=dropout,
        )

    def weighed(self) -> Seen:
        """A call that made its weights: query · keyᵀ (+ mask), then weights · value."""
        (*added, query, key, _), (_, value, output) = self.products
        query, key, value, output = (
            tensor.unflatten(0, (-1, self.heads)) for tensor in (query, key.mT, value, output)
        )
        table = added[0] if added else None
        if table is not None:
            table = table.unflatten(0, (-1, self.heads)) if len(table) > 1 else table[None]
        return Seen(query, key, value, output, 1.0, mask=table, dropout=self.dropout)
