"""Adds the axes and the padding of a running `nn.MultiheadAttention` to its recorded call."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.recorder.module_stack import Frame
from heedful.recorder.observed_call import AXES, Observed, TokenMasks

DOOR = "nn.MultiheadAttention"
# The axes of the queries without a fused kernel, by the number of axes of the scores: the module
# joins texts and heads in one axis; SDPA with dropout on a CPU has one axis for each
BY_HAND = {3: "(b h) n d", 4: "(b) h n d"}
SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def add_module_facts(observed: Observed, frame: Frame) -> None:
    """Add axes, number of texts, kind and padding to a call of the original `forward` of torch."""
    if type(frame.module).forward is not nn.MultiheadAttention.forward:
        return
    inputs = SIGNATURE.bind(frame.module, *frame.arguments, **frame.keywords).arguments
    taped = observed.taped
    observed.door = DOOR
    observed.axes = AXES if taped is None else BY_HAND[len(taped.softmax.shape)]
    if not inputs["query"].is_nested:
        shape = inputs["query"].shape
        observed.texts = 1 if len(shape) < 3 else shape[0 if frame.module.batch_first else 1]
    observed.cross = not _is_same(inputs["query"], inputs["key"])
    padding = inputs.get("key_padding_mask")
    if padding is not None and observed.real is None:
        keep = torch.atleast_2d(~padding if padding.dtype == torch.bool else padding == 0)
        M = observed.key.shape[-2]
        # keys that the module appends, such as those of add_bias_kv, are real
        keys = F.pad(keep, (0, M - keep.shape[1]), value=True)
        observed.real = TokenMasks(keys, None if observed.cross else keep)


def _is_same(query: Tensor, key: Tensor) -> bool:
    """Whether two tensors are equal. They may be separate, as two results of the same norm."""
    if query is key:
        return True
    if query.is_nested or key.is_nested or query.shape != key.shape:
        return False
    memory = [(tensor.data_ptr(), tensor.stride()) for tensor in (query, key)]
    return memory[0] == memory[1] or torch.equal(query, key)
