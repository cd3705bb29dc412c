"""Holds the addresses of storages, so that no other storage gets one while it is known.

torch keeps the mark of a storage, though not its numbers, for as long as there is a weak reference
to it. These are torch's own, without an object of Python's for each: there is one for each tensor
that a model makes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_is_gone, _forget = torch.UntypedStorage._expired, torch.UntypedStorage._free_weak_ref


class Addresses:
    """The addresses of some storages.

    marks: the weak reference of each.

    >>> addresses, tensor = Addresses(), torch.ones(2)
    >>> key = addresses.hold(tensor.untyped_storage())
    >>> del tensor
    >>> addresses.free(addresses.gone())
    >>> addresses.marks
    {}
    """

    __slots__ = ("marks",)

    def __init__(self, homes: Iterable[torch.UntypedStorage] = ()) -> None:
        self.marks: dict[int, int] = {}
        for home in homes:
            self.hold(home)

    def hold(self, home: torch.UntypedStorage) -> int:
        """Hold the address of a storage, which is given back."""
        key = home._cdata
        if key not in self.marks:
            self.marks[key] = home._weak_ref()  # type: ignore[assignment]
        return key

    def gone(self) -> list[int]:
        """The addresses whose storages are gone."""
        return [key for key, mark in self.marks.items() if _is_gone(mark)]

    def free(self, keys: Iterable[int]) -> None:
        """Let go of some addresses, which others may get then."""
        for key in keys:
            _forget(self.marks.pop(key))

    def clear(self) -> None:
        """Let go of all, each once, even where Ctrl-C comes between."""
        while self.marks:
            _forget(self.marks.popitem()[1])

    def __del__(self) -> None:
        self.clear()
