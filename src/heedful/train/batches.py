"""Batches from a map of tokens: each a function of numbers (`Which`), so no generator is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

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
    """Where the `batch` windows of `length` tokens begin, (B,).

    In shuffled passes windows do not overlap, and begin elsewhere in each pass, so that no two
    passes cut a text at the same places. Other windows are drawn from `random`.
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


def parts(tokens: np.ndarray, length: int, batch: int) -> Iterator[np.ndarray]:
    """All tokens in order, in rows (B, length) that do not overlap; the last may be shorter."""
    end = len(tokens) // length * length
    for start in range(0, end, batch * length):
        yield tokens[start : min(end, start + batch * length)].reshape(-1, length)
    if end < len(tokens):
        yield tokens[None, end:]


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
