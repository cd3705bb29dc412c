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

from heedful.ops.masks import Causal
from heedful.recorder.capture import Seen

SDPA = {F.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention}


def is_needed(model: nn.Module) -> bool:
    """Whether some of the model's attention may be seen by no other door."""
    home = type(model).__module__.split(".")[0]
    if home == "transformers":
        return not getattr(model, "_supports_attention_backend", False)
    return home != "heedful"


@contextmanager
def watch(see: Callable[[Seen], None], here: Callable[[], bool]) -> Iterator[None]:
    """Tell of every call of torch's scaled_dot_product_attention, where `here()` says so."""
    with _Mode(see, here):
        yield


class _Mode(TorchFunctionMode):
    def __init__(self, see: Callable[[Seen], None], here: Callable[[], bool]) -> None:
        super().__init__()
        self.see, self.here = see, here

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        output = function(*arguments, **keywords)
        if function in SDPA and not torch.compiler.is_compiling() and self.here():
            self.see(translated(output, *arguments, **keywords))
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
    mask: Causal | Tensor | None = Causal(0) if is_causal else None
    bias = None
    if attn_mask is not None:
        mask, bias = (attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)
    return Seen(
        _four(query),
        _four(key),
        _four(value),
        _four(output),
        query.shape[-1] ** -0.5 if scale is None else scale,
        mask=mask,
        bias=bias,
        dropout=dropout_p,
        door="scaled_dot_product_attention",
    )


def _four(tensor: Tensor) -> Tensor:
    if tensor.ndim == 4:
        return tensor
    if tensor.ndim < 4:
        return tensor.reshape(*[1] * (3 - tensor.ndim), *tensor.shape)[:, None]
    return tensor.flatten(0, -4)
