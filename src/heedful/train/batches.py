"""Batches from a map of tokens: each a function of the seed and the step, so nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def draw(
    tokens: np.ndarray, context_length: int, batch: int, key: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Random windows of the tokens, and the same one token later.

    Args:
        tokens: ids (T,), a memory map.
        context_length: N, tokens of a window.
        batch: B, windows.
        key: what the draw depends on, (seed, step, …).

    Returns:
        inputs and targets, (B, N) each.

    >>> inputs, targets = draw(np.arange(100), context_length=3, batch=2, key=(1, 0))
    >>> bool((targets == inputs + 1).all())
    True
    """
    starts = np.random.default_rng(key).integers(0, len(tokens) - context_length, batch)
    windows = np.stack([tokens[start : start + context_length + 1] for start in starts]).astype(
        np.int64
    )
    return torch.from_numpy(windows[:, :-1]), torch.from_numpy(windows[:, 1:])


def every_window(
    tokens: np.ndarray, context_length: int, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """All tokens in order, in windows that do not overlap; the last may be shorter.

    Every token but the first is a target exactly once.
    """
    whole = (len(tokens) - 1) // context_length
    for first in range(0, whole, batch):
        rows = min(batch, whole - first)
        start, stop = first * context_length, (first + rows) * context_length
        ids = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
        yield ids[:-1].view(rows, context_length), ids[1:].view(rows, context_length)
    if (len(tokens) - 1) % context_length:
        ids = torch.from_numpy(tokens[whole * context_length :].astype(np.int64))
        yield ids[None, :-1], ids[None, 1:]
