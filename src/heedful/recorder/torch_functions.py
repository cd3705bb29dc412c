"""The third door: torch's own functions, for models that neither of the others knows.

A mode that sees every torch function taxes each by 2–3 µs, so it is only entered where needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode

from heedful.ops.fused import four_axes
from heedful.ops.masks import Causal
from heedful.recorder import multi_head
from heedful.recorder.by_hand import ByHand
from heedful.recorder.seen import See, Seen, Texts

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
        has_torchs = any(isinstance(part, nn.MultiheadAttention) for part in model.modules())
        return has_torchs or not getattr(model, "_supports_attention_backend", False)
    return home != "heedful"


@contextmanager
def watch(see: See, here: Callable[[], bool], texts: Texts) -> Iterator[None]:
    """Tell of every call of torch's functions of attention, where `here()` says so.

    Args:
        see: is told of each.
        here: whether what runs now is to be told.
        texts: of how many texts so many tables of some lengths are.
    """
    with _Mode(see, here, texts):
        yield


class _Mode(TorchFunctionMode):
    def __init__(self, see: See, here: Callable[[], bool], texts: Texts) -> None:
        super().__init__()
        self.see, self.here, self.texts = see, here, texts
        self.by_hand = ByHand(see, here, texts)

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        if torch.compiler.is_compiling():
            return function(*arguments, **keywords)
        if function is multi_head.FUNCTION and self.here():
            return multi_head.run(self.see, SDPA, arguments, keywords)
        output = function(*arguments, **keywords)
        if function in SDPA:
            if self.here():
                self.see(translated, self.texts, output, *arguments, **keywords)
        elif function is flex_attention:
            if self.here():
                self.see(flexed, output, *arguments)
        else:
            self.by_hand.follow(function, arguments, keywords, output)
        return output


class FlexMask(NamedTuple):
    """The mask of flex attention as its kernel has it: a function of batch, head, query and key."""

    mask_mod: Callable


def flexed(
    output: tuple, query: Tensor, key: Tensor, value: Tensor, change: Callable, mask: tuple,
    scale: float, *_: Any,
) -> Seen:  # fmt: skip
    """A call of flex attention, which has changed no score but by its mask."""
    if change.__name__ != "_identity":
        raise TypeError("flex attention with a score_mod, whose weights are of another form")
    return Seen(query, key, value, output[0], scale, mask=FlexMask(mask[-1]), door="flex_attention")


def translated(
    texts: Texts,
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
    lead = tuple(output.shape[:-2])
    # three axes are heads, of one text or of several, and some models have them all in one axis
    parts = texts(lead[0], (query.shape[-2], key.shape[-2])) if len(lead) == 1 else 1

    def four(tensor: Tensor) -> Tensor:
        if len(lead) != 1 or tensor.ndim < 3:
            return four_axes(tensor, lead)
        if enable_gqa:
            return tensor[None]
        return tensor.expand(*lead, *tensor.shape[1:]).unflatten(0, (parts, -1))

    def of_all(tensor: Tensor) -> Tensor:
        given = four(tensor)
        return given.expand(len(context), *given.shape[1:])

    context = four(output)
    of_queries = four(query)
    return Seen(
        of_queries.expand(*context.shape[:2], *of_queries.shape[2:]),
        of_all(key),
        of_all(value),
        context,
        query.shape[-1] ** -0.5 if scale is None else scale,
        mask=Causal(0) if is_causal else None if attn_mask is None else four(_filled(attn_mask)),
        dropout=dropout_p,
        causal=is_causal or None,
        door="scaled_dot_product_attention",
    )


def _filled(mask: Tensor) -> Tensor:
    """A mask with its entries, which torch's `CausalBias` has none of until one asks."""
    fill = getattr(mask, "_materialize", None)
    return mask if fill is None else fill()
