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

import torch
from torch import Tensor


class _Seen(threading.local):
    """What the modes of a thread have seen: of several recordings all see each operation."""

    def __init__(self) -> None:
        self.counts: Counter[int | None] = Counter()  # by storage
        self.recordings = 0


_seen = _Seen()


@contextmanager
def counted() -> Iterator[None]:
    """While entered, what is noted is remembered; entered more than once, until the last exit."""
    _seen.recordings += 1
    try:
        yield
    finally:
        _seen.recordings -= 1
        if not _seen.recordings:
            _seen.counts.clear()


def note(written: Iterable[Any]) -> None:
    """Count the tensors that an operation writes into, also those in lists."""
    for one in written:
        if isinstance(one, Tensor):
            key = _storage_of(one)
            if key is not None:
                _seen.counts[key] += 1
        elif isinstance(one, list | tuple):
            note(one)


def state_of(tensor: Tensor) -> tuple[int | None, int]:
    """What tells a tensor from itself before somebody wrote into it.

    It is how often it was changed as torch counts it (None for one that was made in inference mode)
    and how often an operation wrote into its storage, while a mode saw that.

    >>> tensor = torch.zeros(3)
    >>> before = state_of(tensor)
    >>> state_of(tensor.add_(1)) == before
    False
    """
    version = None if tensor.is_inference() else tensor._version
    return version, _seen.counts[_storage_of(tensor)] if _seen.counts else 0


def _storage_of(tensor: Tensor) -> int | None:
    """The address of a tensor's storage; None of one that has none of its own."""
    try:
        return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None
    except RuntimeError:  # as of tensors that wrap others
        return None
