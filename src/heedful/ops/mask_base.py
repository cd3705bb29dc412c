"""What every mask can do, and several of them at once; the masks themselves are in `masks.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import ALL, Index, Shape, indices, meeting


class Mask(ABC):
    """What every mask can do.

    A new mask defines `allowed`, of which `crop` and `between` are made; `span` where it knows more
    than "any key"; and `check` where it has a size of its own. None is derived from another one,
    whose `span` would be untrue of what it allows; masks are combined with `&`.
    """

    device: torch.device | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        parents = [base.__name__ for base in cls.__bases__ if issubclass(base, Mask)]
        if parents != ["Mask"]:
            raise ArgumentError(
                f"a mask {cls.__name__} that is derived from {', '.join(parents)}",
                expected="one derived from Mask itself",
                remedy="combine masks with &",
            )

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Which pairs may attend.

        Args:
            query: indices of queries, (n, 1).
            key: indices of keys, (1, m).
            shape: the shape (..., N, M) of the whole score table.

        Returns:
            boolean tensor that broadcasts to (..., n, m).
        """

    def check(self, shape: Shape) -> None:  # noqa: B027 - most masks fit any size
        """Raise an `ArgumentError` where the mask's own size does not fit the scores' shape."""

    def span(self, queries: range, shape: Shape) -> range:
        """The keys that a run of queries can see at the most; the others are all masked."""
        return range(shape[-1])

    def certain(self, queries: range, shape: Shape) -> range:
        """Keys that every query of a run is known to see: there the mask need not be made."""
        return range(0)

    def of_heads(self, heads: Index) -> Mask:
        """The mask for some of the heads; only a table can have one for each."""
        return self

    def leaves_every_row(self, shape: Shape) -> bool:
        """Whether each query is sure to see a key, so that no row needs care in the softmax."""
        return False

    def crop(
        self,
        shape: Shape,
        queries: Index = ALL,
        keys: Index = ALL,
        device: torch.device | str | None = None,
    ) -> Bool[Tensor, "*lead n m"]:
        """The mask of chosen queries and keys; memory grows with the crop alone.

        Args:
            shape: shape (..., N, M) of the whole score table.
            queries, keys: a slice, a list of indices (negative ones count from the end), or a
                boolean for each.
            device: where to make it; by default where the mask's own tensors are.

        Returns:
            boolean tensor that broadcasts to (..., n, m), True = may attend.

        Raises:
            ArgumentError: an index outside N or M, or a mask whose own size does not fit.
        """
        self.check(shape)
        device = device or self.device
        query = indices(queries, shape[-2], "query").to(device)
        key = indices(keys, shape[-1], "key").to(device)
        return self._between(query, key, shape)

    def between(
        self, shape: Shape, rows: Tensor, columns: Tensor | None, device: torch.device
    ) -> Bool[Tensor, "*lead n m"]:
        """As `crop`, of indices from 0 that are known to exist (None is all keys): unchecked."""
        key = torch.arange(shape[-1], device=device) if columns is None else columns.to(device)
        return self._between(rows.to(device), key, shape)

    def _between(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        allowed = self.allowed(query[:, None], key[None, :], shape)
        return allowed.expand(*allowed.shape[:-2], len(query), len(key))

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Combined((self, other))


@dataclass(frozen=True, eq=False)
class Combined(Mask):
    """Several masks, all of which must allow a pair; made by `&`.

    Parts that are combined themselves come as their own parts.
    """

    parts: tuple[Mask, ...]

    def __post_init__(self) -> None:
        parts = tuple(one for part in self.parts for one in _parts(part))
        object.__setattr__(self, "parts", parts)

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """Where the first part with tensors is."""
        return next((part.device for part in self.parts if part.device is not None), None)

    def check(self, shape: Shape) -> None:
        """Every part fits."""
        for part in self.parts:
            part.check(shape)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """What every part allows."""
        allowed = self.parts[0].allowed(query, key, shape)
        for part in self.parts[1:]:
            allowed = allowed & part.allowed(query, key, shape)
        return allowed

    def span(self, queries: range, shape: Shape) -> range:
        """Where the spans of all parts meet."""
        return meeting(*(part.span(queries, shape) for part in self.parts))

    def certain(self, queries: range, shape: Shape) -> range:
        """What is certain for all parts."""
        return meeting(*(part.certain(queries, shape) for part in self.parts))

    def of_heads(self, heads: Index) -> Mask:
        """Each part for some of the heads."""
        return changed(self, parts=tuple(part.of_heads(heads) for part in self.parts))


def changed(mask: Mask, **fields: object) -> Mask:
    """The same mask, of its own class, with other tensors; no `__init__` is asked."""
    other = copy(mask)
    for name, value in fields.items():
        object.__setattr__(other, name, value)  # masks are frozen
    return other


def _parts(mask: Mask) -> tuple[Mask, ...]:
    return mask.parts if isinstance(mask, Combined) else (mask,)
