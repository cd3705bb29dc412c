"""The third door: torch's own functions, for models that neither of the others knows.

A mode that sees every torch function taxes each by 2–3 µs, so it is only entered where needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.ops.fused import four_axes
from heedful.ops.masks import Causal
from heedful.recorder import multi_head
from heedful.recorder.by_hand import ByHand
from heedful.recorder.capture import Seen
from heedful.recorder.recognise import mask_and_bias

SDPA = {
    F.scaled_dot_product_attention,
    torch._C._nn.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
}


def is_needed(model: nn.Module) -> bool:
    """Whether some of the model's attention may be seen by no other door."""
    home = type(model).__module__.split(".")[0]
    if home == "transformers":
        return not getattr(model, "_supports_attention_backend", False)
    return home != "heedful"


@contextmanager
def watch(
    see: Callable[[Seen], None], here: Callable[[], bool], batch: Callable[[], int | None]
) -> Iterator[None]:
    """Tell of every call of torch's functions of attention, where `here()` says so.

    Args:
        see: is told of each.
        here: whether what runs now is to be told.
        batch: how many sequences the model was given, where that is known.
    """
    with _Mode(see, here, batch):
        yield


class _Mode(TorchFunctionMode):
    def __init__(
        self,
        see: Callable[[Seen], None],
        here: Callable[[], bool],
        batch: Callable[[], int | None],
    ) -> None:
        super().__init__()
        self.see, self.here = see, here
        self.by_hand = ByHand(see, batch)

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        if torch.compiler.is_compiling():
            return function(*arguments, **keywords)
        if function is multi_head.FUNCTION and self.here():
            return multi_head.run(self.see, translated, SDPA, arguments, keywords)
        output = function(*arguments, **keywords)
        if function in SDPA:
            if self.here():
                self.see(translated(output, *arguments, **keywords))
        elif self.here():
            self.by_hand.follow(function, arguments, keywords, output)
        return output


def translated(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Seen:
    """A call of SDPA as all doors tell it, with four axes."""
    lead = query.shape[:-2]
    mask, bias = mask_and_bias(attn_mask, query, key)
    return Seen(
        four_axes(query, lead),
        four_axes(key, lead),
        four_axes(value, lead),
        four_axes(output, lead),
        query.shape[-1] ** -0.5 if scale is None else scale,
        mask=Causal(0) if is_causal else None if mask is None else four_axes(mask, lead),
        bias=None if bias is None else four_axes(bias, lead),
        dropout=dropout_p,
        door="scaled_dot_product_attention",
    )
