"""Batches from a map of tokens: each a function of the seed and the step, so nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from heedful.processes import Processes

T = TypeVar("T")


ALL = slice(None)


def draw(
    tokens: np.ndarray,
    context_length: int,
    batch: int,
    key: tuple[int, ...],
    rows: slice = ALL,
) -> tuple[Tensor, Tensor]:
    """Random windows of the tokens, and the same one token later.

    Args:
        tokens: ids (T,), a memory map.
        context_length: N, tokens of a window.
        batch: B, windows.
        key: what the draw depends on, (seed, step, …).
        rows: which of the windows are read.

    Returns:
        inputs and targets, (B, N) each, or as many rows as were asked for.

    >>> inputs, targets = draw(np.arange(100), context_length=3, batch=2, key=(1, 0))
    >>> bool((targets == inputs + 1).all())
    True
    """
    starts = np.random.default_rng(key).integers(0, len(tokens) - context_length, batch)[rows]
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


def in_turns(batches: Iterator[T], here: Processes) -> Iterator[tuple[T, bool]]:
    """Of some batches those that are this process's turn: as many in each of the processes.

    Yields:
        a batch, and whether it is new; where there is none left for this process, the latest of
        all once more.

    >>> [list(in_turns(iter("abc"), Processes(rank, 2))) for rank in (0, 1)]
    [[('a', True), ('c', True)], [('b', True), ('c', False)]]
    """
    while turn := list(islice(batches, here.size)):
        is_new = here.rank < len(turn)
        yield turn[here.rank if is_new else -1], is_new
