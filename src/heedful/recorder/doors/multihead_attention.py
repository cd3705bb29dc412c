"""Reads off a running `nn.MultiheadAttention` what it knows of its call: axes and padding."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.recorder.module_stack import Frame
from heedful.recorder.observed_call import AXES, Observed, Real

DOOR = "nn.MultiheadAttention"
# The axes of its queries by the number of those of scores, where no kernel computes them: it
# multiplies texts × heads at once, and SDPA that drops weights at random has an axis for each
BY_HAND = {3: "(b h) n d", 4: "(b) h n d"}
SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def tell(seen: Observed, frame: Frame) -> None:
    """Add to a call what the running module knows of it, if it runs torch's own code."""
    if type(frame.module).forward is not nn.MultiheadAttention.forward:
        return
    given = SIGNATURE.bind(frame.module, *frame.arguments, **frame.keywords).arguments
    seen.door = DOOR
    seen.axes = AXES if seen.meeting is None else BY_HAND[len(seen.meeting.softmax.shape)]
    if not given["query"].is_nested:
        shape = given["query"].shape
        seen.texts = 1 if len(shape) < 3 else shape[0 if frame.module.batch_first else 1]
    seen.cross = not _is_same(given["query"], given["key"])
    padding = given.get("key_padding_mask")
    if padding is not None and seen.real is None:
        keep = torch.atleast_2d(~padding if padding.dtype == torch.bool else padding == 0)
        M = seen.key.shape[-2]
        # keys of the module's own, such as add_bias_kv's, stand after those of the text
        keys = F.pad(keep, (0, M - keep.shape[1]), value=True)
        seen.real = Real(keys, None if seen.cross else keep)


def _is_same(query: Tensor, key: Tensor) -> bool:
    """Whether two tensors have the same numbers, as where a norm was called once for each."""
    if query is key:
        return True
    if query.is_nested or key.is_nested or query.shape != key.shape:
        return False
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in (query, key)]
    return places[0] == places[1] or torch.equal(query, key)
