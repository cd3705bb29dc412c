"""Tells inputs apart that are views of one storage, as `model(data[:, :-1], data[:, 1:])` has them.

What is known of a tensor is known of its storage. Of a storage with several inputs it is known of
each of them: a tensor is of the one in which its first and its last number stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

FEW = 16  # inputs of which views are looked for; of more, each is known only as it was given


class Standing(NamedTuple):
    """Where a tensor stands in its storage."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def standing(tensor: Tensor) -> Standing:
    """Where a tensor stands in its storage.

    >>> import torch
    >>> standing(torch.ones(2, 4)[:, 1:])
    Standing(offset=1, sizes=(2, 3), strides=(4, 1))
    """
    return Standing(int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


class Apart:
    """What is known of several inputs in one storage.

    Args:
        several: of each input its place, and what is known of it.
    """

    def __init__(self, several: Mapping[Standing, Any]) -> None:
        self._several = several

    def of(self, tensor: Tensor) -> Any:
        """What is known of the input that a tensor is, or is a view of; None if that is unclear."""
        own = standing(tensor)
        if own in self._several or len(self._several) > FEW:
            return self._several.get(own)
        ends = (
            own.offset,
            own.offset
            + sum((size - 1) * step for size, step in zip(own.sizes, own.strides, strict=True)),
        )
        found = [one for place, one in self._several.items() if all(_has(place, at) for at in ends)]
        return found[0] if len(found) == 1 else None


def _has(place: Standing, at: int) -> bool:
    """Whether a number of the storage is one of those of an input."""
    left = at - place.offset
    axes = sorted(zip(place.strides, place.sizes, strict=True), reverse=True)
    for step, size in axes:
        if step and size > 1:
            index = min(left // step, size - 1)
            left -= index * step if index > 0 else 0
    return left == 0
