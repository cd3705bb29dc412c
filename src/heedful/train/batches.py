"""Selection of a batch's sequences. It depends only on a `BatchIndex`, so no state is stored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from heedful.processes import Processes

T = TypeVar("T")

ALL = slice(None)
SHUFFLING = 2**31 - 1  # part of a seed: separates random numbers of epochs from those of steps


class BatchIndex(NamedTuple):
    """The index of a batch in a training run. The index determines the content of the batch.

    key: the seed of the batch's random numbers, (seed, step, …). first: the number of sequences
    drawn before this batch, if the training split is read in shuffled epochs; None if every
    sequence is drawn independently.
    """

    key: tuple[int, ...]
    first: int | None = None


def shuffled_pieces(index: BatchIndex, batch: int, pieces: int) -> list[tuple[int, int]]:
    """Return (epoch, piece index) for each sequence of a batch; an epoch draws each piece once.

    >>> [piece for _, piece in shuffled_pieces(BatchIndex((7, 0), first=0), 3, 4)]
    [3, 0, 2]
    >>> shuffled_pieces(BatchIndex((7, 1), first=3), 2, 4)
    [(0, 1), (1, 1)]
    """
    first = index.first or 0
    numbers = (divmod(first + i, pieces) for i in range(batch))
    return [(epoch, int(_permutation(index.key[0], epoch, pieces)[n])) for epoch, n in numbers]


@lru_cache(maxsize=2)  # a batch may begin in one epoch and end in the next
def _permutation(seed: int, epoch: int, pieces: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch, SHUFFLING)).permutation(pieces)


def window_starts(
    index: BatchIndex, batch: int, tokens: int, length: int, random: np.random.Generator
) -> np.ndarray:
    """Return the start positions of `batch` windows of `length` tokens, (B,).

    In shuffled epochs, the windows of one epoch do not overlap. Each epoch starts at a random
    offset, so that epochs cut the text at different positions. Without epochs (`index.first` is
    None), `random` draws each start independently.
    """
    if index.first is None:
        return random.integers(0, tokens - length + 1, batch)
    pieces = max(1, tokens // length - 1)
    offsets = tokens - pieces * length + 1  # every token is read in some epoch
    return np.array(
        [
            int(np.random.default_rng((index.key[0], epoch, SHUFFLING, 1)).integers(offsets))
            + piece * length
            for epoch, piece in shuffled_pieces(index, batch, pieces)
        ]
    )


def ordered_rows(tokens: np.ndarray, length: int, batch: int) -> Iterator[np.ndarray]:
    """Yield all tokens in order: arrays (B, length), B ≤ `batch`, then one shorter row, if any."""
    end = len(tokens) // length * length
    for start in range(0, end, batch * length):
        yield tokens[start : min(end, start + batch * length)].reshape(-1, length)
    if end < len(tokens):
        yield tokens[None, end:]


def take_turns(batches: Iterator[T], processes: Processes) -> Iterator[tuple[T, bool]]:
    """Yield this process's share of the batches; every process gets the same number of batches.

    Yields:
        (batch, is_new). `is_new` is False if the batches ran out before this process's turn. Then
        `batch` is the last batch, which another process gets as a new one.

    >>> [list(take_turns(iter("abc"), Processes(rank, 2))) for rank in (0, 1)]
    [[('a', True), ('c', True)], [('b', True), ('c', False)]]
    """
    while turn := list(islice(batches, processes.size)):
        is_new = processes.rank < len(turn)
        yield turn[processes.rank if is_new else -1], is_new
