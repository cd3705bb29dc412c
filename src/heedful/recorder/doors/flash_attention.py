"""Translates the arguments of transformers' flash attention into a mask of ours.

Its kernels take no mask of queries × keys. They are given a row of real tokens for each sequence,
a window, or where texts packed one after another begin, and put the last query at the last key.
In cross-attention transformers takes the rows of the queries from the mask of the keys: where these
are padded its own output is wrong, and the certificate refuses it. It also refuses a window over
padding amid a text, which the kernel leaves out before it counts.
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
from heedful.recorder.observed_call import Real

LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # all, or none


def is_meant(implementation: str) -> bool:
    """Whether a name of transformers' implementations is flash attention's, also of the hub."""
    return "flash" in implementation


def mask_of(given: dict[str, Any], causal: bool) -> Mask | None:
    """The mask that flash attention's kernels apply; None where every query sees every key.

    `RunError` where the call has a paged cache, or continues packed texts.
    """
    if given.get("cache") is not None:
        raise RunError(
            "flash attention with a cache in pages",
            expected="the keys themselves",
            remedy="record `generate`, or a single pass, without continuous batching",
        )
    (B, _, N, _), M = given["query"].shape, given["key"].shape[2]
    real = given.get("attention_mask")
    end = M if real is None else real.shape[-1]  # a static cache has room for more
    parts: list[Mask] = []
    if real is not None:
        parts.append(Padding(F.pad(real.bool(), (0, M - end))))
    elif (lengths := _packed(given, B)) is not None:
        if N != M or int(lengths.sum()) != N:
            raise RunError(
                f"{len(lengths)} packed texts of {int(lengths.sum())} tokens, continued with {N} "
                f"queries and {M} keys",
                expected="each text whole, in one sequence",
            )
        parts.append(KeyRanges.from_lengths(lengths))
    window = given.get("sliding_window")
    if window is not None and window < M:
        parts.append(Window(int(window), end - N))
    if causal and N > 1:
        parts.append(Causal(end - N))
    return functools.reduce(operator.and_, parts) if parts else None


def real_of(given: dict[str, Any], cross: bool | None) -> Real | None:
    """The real keys that the call itself was told; a model may derive them from another mask."""
    real, N, M = given.get("attention_mask"), given["query"].shape[2], given["key"].shape[2]
    if real is None or cross or not N == M == real.shape[-1]:
        return None
    return Real(real.bool())


def _packed(given: dict[str, Any], sequences: int) -> Tensor | None:
    """The lengths of packed texts, which stand one after another; None where it is one text."""
    if all(given.get(name) is not None for name in LENGTHS):
        return given["cu_seq_lens_q"].diff().long()
    position = given.get("position_ids")
    if position is None or sequences != 1 or position.shape[-1] < 2:
        return None
    position = position.reshape(-1)
    if bool((position.diff() == 1).all()):
        return None
    starts = (position == position.min()).nonzero()[:, 0]
    return torch.cat([starts, starts.new_tensor([len(position)])]).diff()
