"""Translates the arguments of transformers' flash attention into a mask of `ops.masks`.

Its kernels take no mask of queries × keys. They take a padding mask, a window, or the lengths of
packed texts, and align masks to the bottom right. The certificate refutes two faulty cases. In
cross-attention, transformers applies the padding mask of the keys to the queries, so its output is
wrong if keys are padded. A window over padding inside a text counts only the real tokens.
Source: transformers, `modeling_flash_attention_utils.py` (5.x); Dao 2023, arXiv:2307.08691.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import RunError
from heedful.ops.masks import Causal, KeyRanges, Mask, Padding, Window
from heedful.recorder.observed_call import TokenMasks

LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # all or none


def is_flash(implementation: str) -> bool:
    """Whether the name of an implementation is flash attention's, in transformers or on the hub."""
    return "flash" in implementation


def mask_of(inputs: dict[str, Any], causal: bool) -> Mask | None:
    """Return the mask that the kernel applies; None if every query may attend to every key. Raise
    `RunError` for a paged cache, and for packed texts that are continued."""
    if inputs.get("cache") is not None:
        raise RunError(
            "flash attention with a cache in pages",
            expected="the keys themselves",
            remedy="record `generate`, or a single pass, without continuous batching",
        )
    (B, _, N, _), M = inputs["query"].shape, inputs["key"].shape[2]
    real = inputs.get("attention_mask")
    end = M if real is None else real.shape[-1]  # a static cache may have empty slots after it
    parts: list[Mask] = []
    if real is not None:
        parts.append(Padding(F.pad(real.bool(), (0, M - end))))
    elif (lengths := _packed_lengths(inputs, B)) is not None:
        if N != M or int(lengths.sum()) != N:
            raise RunError(
                f"{len(lengths)} packed texts of {int(lengths.sum())} tokens, continued with {N} "
                f"queries and {M} keys",
                expected="each text whole, in one sequence",
            )
        parts.append(KeyRanges.from_lengths(lengths))
    window = inputs.get("sliding_window")
    if window is not None and window < M:
        parts.append(Window(int(window), end - N))
    if causal and N > 1:
        parts.append(Causal(end - N))
    return functools.reduce(operator.and_, parts) if parts else None


def real_of(inputs: dict[str, Any], cross: bool | None) -> TokenMasks | None:
    """Return the real tokens by the padding mask of the call; None if it has none of its own."""
    real, N, M = inputs.get("attention_mask"), inputs["query"].shape[2], inputs["key"].shape[2]
    if real is None or cross or not N == M == real.shape[-1]:
        return None
    return TokenMasks(real.bool())


def _packed_lengths(inputs: dict[str, Any], sequences: int) -> Tensor | None:
    """Return the lengths of texts that are packed into one sequence; None for a single text."""
    if all(inputs.get(name) is not None for name in LENGTHS):
        return inputs["cu_seq_lens_q"].diff().long()
    position = inputs.get("position_ids")
    if position is None or sequences != 1 or position.shape[-1] < 2:
        return None
    position = position.reshape(-1)
    if bool((position.diff() == 1).all()):
        return None
    starts = (position == position.min()).nonzero()[:, 0]
    return torch.cat([starts, starts.new_tensor([len(position)])]).diff()
