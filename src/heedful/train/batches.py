"""Batches from a map of tokens: each a function of numbers (`Which`), so no generator is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from heedful.processes import Processes

T = TypeVar("T")

ALL = slice(None)
SHUFFLING = 2**31 - 1  # in a key: so that no step's random numbers are those of a pass


class Which(NamedTuple):
    """Which batch of a training it is, and so what is in it.

    key: what its random numbers depend on, (seed, step, …). first: how many sequences were drawn
    before it, where the training split is read in shuffled passes; None draws each sequence from
    all of the split.
    """

    key: tuple[int, ...]
    first: int | None = None

    def random(self) -> np.random.Generator:
        """Its random numbers."""
        return np.random.default_rng(self.key)


def shuffled(which: Which, batch: int, pieces: int) -> list[tuple[int, int]]:
    """The pass and the piece of each sequence of a batch: a pass has each piece once.

    >>> [piece for _, piece in shuffled(Which((7, 0), first=0), 3, 4)]
    [3, 0, 2]
    >>> shuffled(Which((7, 1), first=3), 2, 4)
    [(0, 1), (1, 1)]
    """
    first = which.first or 0
    places = (divmod(first + i, pieces) for i in range(batch))
    return [(number, int(_pass(which.key[0], number, pieces)[at])) for number, at in places]


@lru_cache(maxsize=2)  # a batch may begin in one pass and end in the next
def _pass(seed: int, number: int, pieces: int) -> np.ndarray:
    return np.random.default_rng((seed, number, SHUFFLING)).permutation(pieces)


def starts(
    which: Which, batch: int, tokens: int, length: int, random: np.random.Generator
) -> np.ndarray:
    """Where the windows of a batch begin, (B,).

    In shuffled passes windows do not overlap, and begin elsewhere in each pass, so that no two
    passes cut a text at the same places.

    Args:
        which: the batch.
        batch: B, windows.
        tokens: how many there are.
        length: tokens of a window.
        random: draws windows that are not shuffled.
    """
    if which.first is None:
        return random.integers(0, tokens - length + 1, batch)
    pieces = max(1, tokens // length - 1)
    room = tokens - pieces * length + 1  # so that every token is read in some pass
    return np.array(
        [
            int(np.random.default_rng((which.key[0], number, SHUFFLING, 1)).integers(room))
            + piece * length
            for number, piece in shuffled(which, batch, pieces)
        ]
    )


def draw(
    tokens: np.ndarray,
    context_length: int,
    batch: int,
    which: Which,
    rows: slice = ALL,
) -> tuple[Tensor, Tensor]:
    """Windows of the tokens, and the same one token later.

    Args:
        tokens: ids (T,), a memory map.
        context_length: N, tokens of a window.
        batch: B, windows.
        which: of the batches of the training.
        rows: which of the windows are read.

    Returns:
        inputs and targets, (B, N) each, or as many rows as were asked for.

    >>> inputs, targets = draw(np.arange(100), context_length=3, batch=2, which=Which((1, 0)))
    >>> bool((targets == inputs + 1).all())
    True
    """
    firsts = starts(which, batch, len(tokens) - 1, context_length, which.random())[rows]
    places = firsts[:, None] + np.arange(context_length + 1)
    windows = np.asarray(tokens)[places].astype(np.int64)
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
