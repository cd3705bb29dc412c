"""Where the axes of a tensor come from, read off its strides.

A view is its storage with sizes and strides. So it is enough to know of each storage which axes
stand in it with which strides: then any view of it (split, joined, permuted, sliced) can be read,
and only what makes a new storage has to be followed. Strides are in bytes, as views of another
type (complex numbers, say) have other units.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor

DEEPEST = 40  # storages that wait for each other; then one is read at once


@dataclass(eq=False, slots=True)
class Axis:
    """An axis that others are made of.

    given: the number of the model's input that has it, and its place there.
    is_copy: the same numbers over and over, as `expand` makes them.
    is_doubtful: made by a product, or of pieces put beside each other; where nothing more is known
        of it, it may be of heads.
    stood_beside: whether a product with parameters left it as it was, as it does texts.
    """

    size: int
    given: tuple[int, int] | None = None
    is_copy: bool = False
    is_doubtful: bool = False
    stood_beside: bool = False


class Part(NamedTuple):
    """Some digits of an axis' index: those of value step, 2 · step, …, size of them.

    feature: whether it is of the numbers that a product with parameters made for each token, or
        of what stood beside them; None where no such product was seen.
    """

    axis: Axis
    step: int
    size: int
    feature: bool | None = None

    def inner(self, size: int) -> Part:
        """Its last digits."""
        return self._replace(size=size)

    def outer(self, size: int) -> Part:
        """Its first digits, after `size` inner ones."""
        return self._replace(step=self.step * size, size=self.size // size)


Parts: TypeAlias = tuple[Part, ...]  # of one axis, the outer ones first


def length(parts: Parts) -> int:
    """How long an axis of these parts is."""
    return math.prod(part.size for part in parts)


def are_of_one(parts: Parts, others: Parts) -> bool:
    """Whether two are of the same axes: the one may be a run of the other."""
    return [part.axis for part in parts] == [part.axis for part in others]


class Storage:
    """The parts that stand in a storage, each with its stride; made when somebody first asks.

    is_parameter: whether it holds parameters, or what was made of them element by element.
    is_made: whether it is a product of parameters alone.
    """

    __slots__ = ("_items", "_make", "depth", "is_made", "is_parameter")

    def __init__(
        self,
        make: Callable[[], list[tuple[Part, int]]],
        depth: int = 0,
        is_parameter: bool = False,
        is_made: bool = False,
    ) -> None:
        self._make: Callable[[], list[tuple[Part, int]]] | None = make
        self._items: list[tuple[Part, int]] = []
        self.depth = depth
        self.is_parameter = is_parameter
        self.is_made = is_made
        if depth > DEEPEST:
            self.items()

    def items(self) -> list[tuple[Part, int]]:
        """Parts with their strides."""
        if self._make is not None:
            self._items, self._make, self.depth = self._make(), None, 0
        return self._items


class View(NamedTuple):
    """A storage with sizes and strides."""

    storage: Storage
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def axes(self) -> list[Parts | None]:
        """The parts of each axis; None where its strides fit none."""
        items = self.storage.items()
        return [_read(items, *one) for one in zip(self.sizes, self.strides, strict=True)]


def place(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of a tensor and its strides in bytes."""
    unit = tensor.element_size()
    return tuple(tensor.shape), tuple(unit * stride for stride in tensor.stride())


def written(
    axes: Sequence[Parts | None], sizes: Sequence[int], strides: Sequence[int]
) -> list[tuple[Part, int]]:
    """The parts of a storage, from those of the axes of a tensor that fills it."""
    items = []
    for parts, size, stride in zip(axes, sizes, strides, strict=True):
        if parts is None or length(parts) != size:
            parts = (Part(Axis(size), 1, size),) if size > 1 else ()
        for part in reversed(parts):
            items.append((part, stride))
            stride *= part.size
    return items


def fresh(tensor: Tensor) -> Callable[[], list[tuple[Part, int]]]:
    """Of a tensor about whose axes nothing is known."""
    sizes, strides = place(tensor)
    return lambda: written([None] * len(sizes), sizes, strides)


def _read(items: list[tuple[Part, int]], size: int, stride: int) -> Parts | None:
    if size == 1:
        return ()
    if stride == 0:
        return (Part(Axis(size, is_copy=True), 1, size),)
    found: list[Part] = []
    while size > 1:
        fits = (one for one in items if one[1] <= stride < one[1] * one[0].size)
        part, unit = next((one for one in fits if stride % one[1] == 0), (None, 0))
        if part is None:
            return None
        skipped = stride // unit
        room = -(-part.size // skipped)
        if size > room and (size % room or part.size % skipped):
            return None
        taken = min(size, room)
        found.append(part._replace(step=part.step * skipped, size=taken))
        size, stride = size // taken, unit * part.size
    return tuple(reversed(found))


class CommonPart(NamedTuple):
    """What several axes of one size have in common: its size, and the part of each that it is."""

    size: int
    parts: tuple[Part | None, ...]


def common(size: int, several: Sequence[Parts | None]) -> list[CommonPart]:
    """The coarsest parts of which all are made, outer first.

    >>> axis, other = Axis(6), Axis(6)
    >>> joined = (Part(other, 3, 2), Part(other, 1, 3))
    >>> [atom.size for atom in common(6, [(Part(axis, 1, 6),), joined])]
    [2, 3]
    """
    if size == 1:
        return []
    known = [parts for parts in several if parts is not None]
    ends = {1, size}
    for parts in known:
        end = 1
        for part in reversed(parts):
            end *= part.size
            ends.add(end)
    chain = sorted(ends)
    if any(outer % inner for inner, outer in itertools.pairwise(chain)):
        return [CommonPart(size, (None,) * len(several))]
    atoms = [
        CommonPart(outer // inner, tuple(_digits(parts, inner, outer) for parts in several))
        for inner, outer in itertools.pairwise(chain)
    ]
    return atoms[::-1]


def _digits(parts: Parts | None, inner: int, outer: int) -> Part | None:
    """The part of an axis whose digits are worth `inner` up to `outer`."""
    end = 1
    for part in reversed(parts or ()):
        if end <= inner < end * part.size:
            return part.outer(inner // end).inner(outer // inner)
        end *= part.size
    return None
