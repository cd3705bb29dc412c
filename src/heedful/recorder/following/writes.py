"""Counts how often operations wrote into each storage while a model is recorded.

torch counts the changes of a tensor in its `_version`, but not all of them: none in inference mode,
and where two tensors share a storage without being views of each other, as `.data` and
`copy.deepcopy` make them, each counts its own. A dispatch mode sees every operation of torch, and
the schema of one says which of its arguments it writes into.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, UntypedStorage


class _Writes:
    """How often operations wrote into each storage, and how many recordings ask."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.recordings = 0


class _Thread(threading.local):
    """What the modes of a thread see: of several recordings all see each operation."""

    def __init__(self) -> None:
        self.writes = _Writes()


_thread = _Thread()


@contextmanager
def counted() -> Iterator[None]:
    """While entered, what is noted is remembered; entered more than once, until the last exit."""
    writes = _thread.writes  # which are those of this thread, wherever the recording ends
    writes.recordings += 1
    try:
        yield
    finally:
        writes.recordings -= 1
        if not writes.recordings:
            writes.counts.clear()


def note(written: Iterable[Any]) -> None:
    """Count the tensors that an operation writes into, also those in lists."""
    if not _thread.writes.recordings:  # a mode that was ended in another thread still sees it
        return
    for one in written:
        if isinstance(one, Tensor):
            storage = _storage_of(one)
            if storage is not None:
                _thread.writes.counts[storage._cdata] += 1
        elif isinstance(one, list | tuple):
            note(one)


def state_of(tensor: Tensor) -> tuple[int | None, int, int]:
    """What tells a tensor from itself before somebody wrote into it, or freed its memory.

    It is how often it was changed as torch counts it (None for one that was made in inference
    mode), the bytes of its storage (0 of one that has none of its own), and how often an operation
    wrote into that, while a mode saw it.

    >>> import torch
    >>> tensor = torch.zeros(3)
    >>> before = state_of(tensor)
    >>> state_of(tensor.add_(1)) == before
    False
    """
    version, counts = None if tensor.is_inference() else tensor._version, _thread.writes.counts
    storage = _storage_of(tensor)
    if storage is None:
        return version, 0, 0
    return version, storage.nbytes(), counts[storage._cdata] if counts else 0


def _storage_of(tensor: Tensor) -> UntypedStorage | None:
    """A tensor's storage; None of one that has none of its own."""
    try:
        return tensor.untyped_storage()
    except RuntimeError:  # as of tensors that wrap others
        return None
