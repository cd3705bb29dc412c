"""Translates the arguments of flash attention in transformers into a mask of `ops.masks`.

The kernels take a padding mask, a window, or the lengths of packed texts, but not a mask of queries
× keys. They align causal masks to the bottom right. In two cases, they apply another mask than this
module returns, and the certificate refutes the call: In cross-attention, transformers applies the
padding mask of keys to the queries. With padding inside a text, a window counts only real tokens.
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

LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # passed together


def is_flash(implementation: str) -> bool:
    """Whether an implementation, of transformers or from the hub, is flash attention."""
    return "flash" in implementation


def mask_of(inputs: dict[str, Any], causal: bool) -> Mask | None:
    """Return the mask that the kernel applies; None if every query may attend to every key. Raise
    `RunError` for a paged cache, or for packed texts with a cache."""
    if inputs.get("cache") is not None:
        raise RunError(
            "flash attention with a paged cache",
            expected="keys in one tensor",
            remedy="record `generate`, or a single pass, without continuous batching",
        )
    (B, _, N, _), M = inputs["query"].shape, inputs["key"].shape[2]
    real = inputs.get("attention_mask")
    end = M if real is None else real.shape[-1]  # from here on, slots of a static cache are empty
    parts: list[Mask] = []
    if real is not None:
        parts.append(Padding(F.pad(real.bool(), (0, M - end))))
    elif (lengths := _packed_lengths(inputs, B)) is not None:
        if N != M or int(lengths.sum()) != N:
            raise RunError(
                f"{len(lengths)} packed texts of {int(lengths.sum())} tokens, continued with {N} "
                f"queries and {M} keys",
                expected="complete texts, packed into one sequence",
            )
        parts.append(KeyRanges.from_lengths(lengths))
    window = inputs.get("sliding_window")
    if window is not None and window < M:
        parts.append(Window(int(window), end - N))
    if causal and N > 1:
        parts.append(Causal(end - N))
    return functools.reduce(operator.and_, parts) if parts else None


def real_of(inputs: dict[str, Any], cross: bool | None) -> TokenMasks | None:
    """Return the real tokens according to the padding mask of the call; None if unknown."""
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
