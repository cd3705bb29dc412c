"""Reads off a running `nn.MultiheadAttention` what it knows of its call: axes and padding."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.recorder.observed import Observed, Real
from heedful.recorder.running import Frame
from heedful.recorder.owners.told_axes import TokenAxes

DOOR = "nn.MultiheadAttention"
SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def is_one(module: nn.Module) -> bool:
    """Whether a module is an `nn.MultiheadAttention` that runs torch's own code."""
    forward = getattr(type(module), "forward", None)
    return isinstance(module, nn.MultiheadAttention) and forward is nn.MultiheadAttention.forward


def told(frame: Frame, axes: int) -> TokenAxes | None:
    """The axes of the running module's queries, for scores of so many axes: texts before heads."""
    query = _given(frame)["query"]
    if axes not in (3, 4) or query.is_nested or query.ndim not in (2, 3):
        return None
    texts = 1 if query.ndim == 2 else query.shape[0 if frame.module.batch_first else 1]
    letters = [["b"], ["h"], ["n"], ["d"]] if axes == 4 else [["b", "h"], ["n"], ["d"]]
    return TokenAxes("as nn.MultiheadAttention has them", letters, texts, {})


def _given(frame: Frame) -> dict[str, Any]:
    return SIGNATURE.bind(frame.module, *frame.arguments, **frame.keywords).arguments


def named(seen: Observed, frame: Frame) -> Observed:
    """The same call, with what the running module knows of it."""
    given = _given(frame)
    seen.inferred = {}
    seen.door = DOOR
    seen.cross = not _is_same(given["query"], given["key"])
    padding = given.get("key_padding_mask")
    if padding is not None and seen.real is None:
        keep = torch.atleast_2d(~padding if padding.dtype == torch.bool else padding == 0)
        # keys of the module's own, such as add_bias_kv's, stand after those of the text
        keys = F.pad(keep, (0, seen.shape[-1] - keep.shape[1]), value=True)
        seen.real = Real(keys, None if seen.cross else keep)
    return seen


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers, as where a norm was called once for each."""
    if one is other:
        return True
    if one.is_nested or other.is_nested or one.shape != other.shape:
        return False
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in (one, other)]
    return places[0] == places[1] or torch.equal(one, other)
