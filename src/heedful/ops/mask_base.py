"""`Mask`, the base class of all masks, and `Combined`; `masks.py` contains the other masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import ALL, Index, Shape, indices, intersection


class Mask(ABC):
    """Base class of masks.

    A mask must define `allowed`, which `crop` and `between` call. It should define `span` if some
    keys are masked for a whole run of queries, and `check` if it fits only one size. A mask must
    inherit from `Mask` directly, since an inherited `span` could be wrong. `&` combines masks.
    """

    @property
    def device(self) -> torch.device | None:
        """The device of the mask's tensors, all on one; None if the mask has no tensor."""
        tensors = (field for field in vars(self).values() if isinstance(field, Tensor))
        return next((tensor.device for tensor in tensors), None)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        parents = [base.__name__ for base in cls.__bases__ if issubclass(base, Mask)]
        if parents != ["Mask"]:
            raise ArgumentError(
                f"mask class {cls.__name__}, derived from {', '.join(parents)}",
                expected="a class derived from Mask itself",
                remedy="combine masks with &",
            )

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Return for each pair of a query and a key whether the query may attend to the key.

        Args:
            query: indices of queries, (n, 1).
            key: indices of keys, (1, m).
            shape: the shape (..., N, M) of the full score table.

        Returns:
            A boolean tensor that broadcasts to (..., n, m).
        """

    def check(self, shape: Shape) -> None:  # noqa: B027 - most masks fit any size
        """Raise `ArgumentError` if the mask does not fit scores of this shape."""

    def span(self, queries: range, shape: Shape) -> range:
        """Return a range of keys outside which every key is masked for all of these queries."""
        return range(shape[-1])

    def common_span(self, queries: range, shape: Shape) -> range:
        """Return a range of keys that all of these queries may attend to."""
        return range(0)

    def of_heads(self, heads: Index) -> Mask:
        """Return the mask of some heads; only a table can differ between heads."""
        return self

    def has_no_empty_row(self, shape: Shape) -> bool:
        """Return True only if every query may attend to a key, so that a plain softmax is safe."""
        return False

    def crop(
        self,
        shape: Shape,
        queries: Index = ALL,
        keys: Index = ALL,
        device: torch.device | str | None = None,
    ) -> Bool[Tensor, "*lead n m"]:
        """Build the mask of chosen queries and keys; memory grows only with the crop.

        Args:
            shape: shape (..., N, M) of the full score table.
            queries, keys: a slice, a list of indices (negative ones count from the end), or one
                boolean per query or key.
            device: of the result; default: the device of the mask's tensors.

        Returns:
            A boolean tensor that broadcasts to (..., n, m), True = may attend.

        Raises:
            ArgumentError: an index outside N or M, or a mask that does not fit the shape.
        """
        self.check(shape)
        rows, columns = indices(queries, shape[-2], "query"), indices(keys, shape[-1], "key")
        return self.between(shape, rows, columns, device or self.device)

    def between(
        self, shape: Shape, rows: Tensor, columns: Tensor | None, device: torch.device | str | None
    ) -> Bool[Tensor, "*lead n m"]:
        """Build a crop from unchecked, non-negative indices; `columns` None stands for all keys."""
        key = torch.arange(shape[-1], device=device) if columns is None else columns.to(device)
        allowed = self.allowed(rows.to(device)[:, None], key[None, :], shape)
        return allowed.expand(*allowed.shape[:-2], len(rows), len(key))

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Combined((self, other))


@dataclass(frozen=True, eq=False)
class Combined(Mask):
    """Several masks combined by `&`: a pair may attend if every part allows it.

    Nested combinations are flattened into `parts`.
    """

    parts: tuple[Mask, ...]

    def __post_init__(self) -> None:
        parts = tuple(inner for part in self.parts for inner in parts_of(part))
        object.__setattr__(self, "parts", parts)

    @property
    def device(self) -> torch.device | None:
        """The device of the first part that has tensors."""
        return next((part.device for part in self.parts if part.device is not None), None)

    def check(self, shape: Shape) -> None:
        """Check every part."""
        for part in self.parts:
            part.check(shape)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Return the pairs that every part allows."""
        allowed = self.parts[0].allowed(query, key, shape)
        for part in self.parts[1:]:
            allowed = allowed & part.allowed(query, key, shape)
        return allowed

    def span(self, queries: range, shape: Shape) -> range:
        """Return the intersection of all spans."""
        return intersection(*(part.span(queries, shape) for part in self.parts))

    def common_span(self, queries: range, shape: Shape) -> range:
        """Return the intersection of all common spans."""
        return intersection(*(part.common_span(queries, shape) for part in self.parts))

    def of_heads(self, heads: Index) -> Mask:
        """Select heads of each part."""
        return Combined(tuple(part.of_heads(heads) for part in self.parts))


def parts_of(mask: Mask | None) -> tuple[Mask, ...]:
    """Return the masks that a mask combines: several, one, or none for None."""
    return mask.parts if isinstance(mask, Combined) else () if mask is None else (mask,)
