"""Reads off the strides of a tensor where each of its axes comes from.

A view is its storage with sizes and strides. So it is enough to know of each storage which axes
stand in it with which strides: then any view of it (split, joined, permuted, sliced) can be read,
and only what makes a new storage has to be followed (`axis_rules.py`). Strides are in bytes, since
views of another type (complex numbers, say) have other units.

An example: a linear layer makes queries of 5 tokens × 12 features, in float32. One feature is 4
bytes, one token 12 · 4 = 48. In `q.view(5, 3, 4).transpose(0, 1)` the axis of size 3 has stride 16,
that is 4 features: it counts the features in steps of 4, so it is the heads. The last axis, of size
4 and stride 4, counts single features: it is the width of a head.

>>> tokens, features = Axis(5), Axis(12)
>>> storage = Storage(lambda: [(Part(tokens, 1, 5), 48), (Part(features, 1, 12), 4)])
>>> heads, queries, width = View(storage, (3, 5, 4), (16, 48, 4)).axes()
>>> heads == (Part(features, 4, 3),), queries == (Part(tokens, 1, 5),)
(True, True)
>>> width == (Part(features, 1, 4),)
True
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from torch import Tensor

from heedful.recorder.following.natures import PLAIN, Nature

DEEPEST = 40  # storages may wait for each other this deep; the next one is read at once


@dataclass(eq=False, slots=True)
class Axis:
    """An axis as it first arose, which the axes of later tensors are parts of.

    given: where a model's input has this axis: the number of the input, and the dimension there.
    moved: the operation that put what stands along such an axis in another place, so that it is not
        known any more which index is which; "" where none did.
    is_aside: whether that input only stands beside others, as a mask or places do.
    joined: whether `cat` made it of pieces, some of an input's axis: its order is not known.
    is_copy: whether it repeats the same numbers, as `expand` makes them.
    is_again: whether it counts the same numbers that `cat` has put one after another.
    is_doubtful: whether a product made it, or `cat` or `stack`; where nothing more is known of it,
        it may be the heads.
    of_features: whether a product with parameters made it, so that it may be heads, however often
        another one left it as it was.
    stood_beside: whether a product with parameters left it as it was, as it leaves the batch.
    """

    size: int
    given: tuple[int, int] | None = None
    moved: str = ""
    is_aside: bool = False
    joined: bool = False
    is_copy: bool = False
    is_again: bool = False
    is_doubtful: bool = False
    of_features: bool = False
    stood_beside: bool = False
    _beside: Axis | None = None
    _sliced: Axis | None = None

    def sliced(self) -> Axis:
        """The same axis where it is read from any place on, and goes on with its beginning."""
        if self._sliced is None:
            self._sliced = replace(self, moved=self.moved or "slice", _beside=None, _sliced=None)
        return self._sliced

    def beside(self) -> Axis:
        """The same axis once a product left it as it was: one, whichever products do.

        So queries and keys that are made of the same tokens still have it in common.
        """
        if self._beside is None:
            self._beside = Axis(
                self.size, joined=self.joined, is_doubtful=self.is_doubtful, stood_beside=True
            )
        return self._beside


class Part(NamedTuple):
    """A part of an axis: of its index i, the digits i // step % size.

    Where 12 features are 3 heads of width 4, the heads are step 4, size 3, and the width is step 1,
    size 4.

    feature: True where a product with parameters made the axis (as a linear layer makes features),
        False where the axis stands beside the features (as tokens and the batch do), None where
        that is not known, since no such product was seen.
    """

    axis: Axis
    step: int
    size: int
    feature: bool | None = None

    @property
    def may_be_heads(self) -> bool:
        """Whether it may be of features or of rows: it was made of both, or of parameters."""
        return self.feature is None and self.axis.is_doubtful

    def inner(self, size: int) -> Part:
        """Its last digits, `size` values of them: of 3 × 4 features, the width has size 4."""
        return Part(self.axis, self.step, size, self.feature)

    def outer(self, size: int) -> Part:
        """Its first digits, which the last ones of `size` values leave: the heads of 3 × 4."""
        return Part(self.axis, self.step * size, self.size // size, self.feature)


Parts: TypeAlias = tuple[Part, ...]  # what one axis of a tensor is made of, the outer part first
Axes: TypeAlias = list[Parts | None]  # those of a tensor; None where nothing is known of one


def length(parts: Parts) -> int:
    """The size of an axis that is made of these parts."""
    size = 1
    for part in parts:
        size *= part.size
    return size


def are_whole(parts: Parts) -> bool:
    """Whether these parts are all of the axes that they are of, and no slices of them."""
    sizes: dict[Axis, int] = {}
    for part in parts:
        sizes[part.axis] = sizes.get(part.axis, 1) * part.size
    return all(size == axis.size for axis, size in sizes.items())


def are_of_one(parts: Parts, others: Parts) -> bool:
    """Whether both are parts of the same axes, though one may be only a slice of the other."""
    are_same = len(parts) == len(others)
    for one, other in zip(parts, others, strict=False):
        are_same = are_same and one.axis is other.axis
    return are_same


class Storage:
    """The parts that stand in a storage, each with its stride; worked out when first asked for.

    depth: how many other storages have to be worked out first, one after the other.
    nature: what kind of numbers it holds.
    """

    __slots__ = ("_items", "_make", "depth", "nature")
    _items: list[tuple[Part, int]]  # once they are worked out

    def __init__(
        self,
        make: Callable[[], list[tuple[Part, int]]],
        depth: int = 0,
        nature: Nature = PLAIN,
    ) -> None:
        self._make: Callable[[], list[tuple[Part, int]]] | None = make
        self.depth = depth
        self.nature = nature
        if depth > DEEPEST:
            self.items()

    def unknown(self) -> list[tuple[Part, int]]:
        """The same with new axes, of which nothing is known."""
        return [(Part(Axis(part.size), 1, part.size), stride) for part, stride in self.items()]

    def items(self) -> list[tuple[Part, int]]:
        """The parts, each with its stride in bytes."""
        if self._make is not None:
            self._items, self._make, self.depth = self._make(), None, 0
        return self._items


Place: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, bytes a number


class View(NamedTuple):
    """A tensor as torch has it: a storage, with sizes, and strides of so many units.

    unit: how many bytes a number takes, which `place` leaves to be multiplied by who asks for axes.
    """

    storage: Storage
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    unit: int = 1

    def axes(self) -> list[Parts | None]:
        """The parts of each axis; None for an axis whose stride fits no part of the storage."""
        storage, sizes, strides, unit = self
        items, found = storage.items(), []
        for size, stride in zip(sizes, strides, strict=True):
            found.append(() if size == 1 else _read(items, size, unit * stride))
        return found

    def known(self) -> list[Parts] | None:
        """The parts of each axis; None where one of them cannot be read off its stride."""
        axes = self.axes()
        return None if None in axes else axes  # type: ignore[return-value]


view_of = functools.partial(tuple.__new__, View)  # the same without a frame of Python's


def place(tensor: Tensor) -> Place:
    """The sizes of a tensor, its strides, and how many bytes one of its numbers takes."""
    return tensor.shape, tensor.stride(), tensor.element_size()


def unexpanded(tensor: Tensor, dims: Iterable[int]) -> Tensor:
    """The tensor with size 1 along each of `dims` that `expand` only repeats (stride 0)."""
    if 0 not in tensor.stride():
        return tensor
    for dim in dims:
        if tensor.shape[dim] > 1 and tensor.stride(dim) == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def widened(tensor: Tensor, *sizes: int) -> Tensor:
    """The tensor expanded to sizes, −1 for one that stays; itself where it has them.

    Between two operations of a model no cache has the code that torch expands with: it takes as
    long as a small product.
    """
    for size, own in zip(sizes, tensor.shape, strict=True):
        if size not in (-1, own):
            return tensor.expand(sizes)
    return tensor


def written(
    axes: Sequence[Parts | None], sizes: Sequence[int], strides: Sequence[int], unit: int
) -> list[tuple[Part, int]]:
    """The parts of a storage with their strides, given the axes of a tensor that fills it.

    An axis that is None, or of another size than its parts have, becomes a new axis.
    """
    items = []
    for parts, size, stride in zip(axes, sizes, strides, strict=True):
        if parts is None or length(parts) != size:
            parts = (Part(Axis(size), 1, size),) if size > 1 else ()
        stride *= unit
        for part in reversed(parts):
            items.append((part, stride))
            stride *= part.size
    return items


def fresh(tensor: Tensor) -> Callable[[], list[tuple[Part, int]]]:
    """A function that makes the parts of a tensor's storage where nothing is known: new axes."""
    return functools.partial(written, [None] * tensor.ndim, *place(tensor))


def _read(items: list[tuple[Part, int]], size: int, stride: int) -> Parts | None:
    """The parts that an axis of this size and stride runs along, outer first; None if none fit."""
    if size == 1:
        return ()
    if stride == 0:
        return (Part(Axis(size, is_copy=True), 1, size),)
    for part, unit in items:
        if unit == stride and part.size == size:  # most axes are one part, as it stands there
            return (part if part.axis.given is None else _from_anywhere(part, part, unit, items),)
    found: list[Part] = []
    while size > 1:
        for part, unit in items:
            if unit <= stride < unit * part.size and stride % unit == 0:
                break
        else:
            return None
        skipped = stride // unit
        room = -(-part.size // skipped)
        if size > room and (size % room or part.size % skipped):
            return None
        taken = min(size, room)
        found.append(Part(part.axis, part.step * skipped, taken, part.feature))
        size, stride = size // taken, unit * part.size
    if found:  # nothing stands along an axis of no numbers
        found[-1] = _from_anywhere(found[-1], part, unit, items)
    return tuple(reversed(found))


def _from_anywhere(found: Part, part: Part, unit: int, items: list[tuple[Part, int]]) -> Part:
    """What was read of a part of an input's axis, which may begin anywhere where it is repeated."""
    if part.axis.given is None:
        return found
    end = unit * part.size
    for other, own in items:
        if own == end and (other.axis.is_copy or other.axis.is_again):
            return found._replace(axis=found.axis.sliced())
    return found


class CommonPart(NamedTuple):
    """A part that several axes of one size have in common.

    parts: the part of each axis that it is, None for an axis of which nothing is known.
    """

    size: int
    parts: tuple[Part | None, ...]


def common(size: int, several: Sequence[Parts | None]) -> list[CommonPart]:
    """The coarsest parts that all of several axes of one size can be split into, outer first.

    An axis of 6 and one of 2 × 3 have parts of 2 and 3 in common:

    >>> axis, other = Axis(6), Axis(6)
    >>> joined = (Part(other, 3, 2), Part(other, 1, 3))
    >>> [shared.size for shared in common(6, [(Part(axis, 1, 6),), joined])]
    [2, 3]
    """
    if size < 2:
        return []
    known = [parts for parts in several if parts is not None]
    if all(len(parts) == 1 and parts[0].size == size for parts in known):  # nothing to split
        return [CommonPart(size, tuple([parts[0] if parts else None for parts in several]))]
    ends = {1, size}
    for parts in known:
        end = 1
        for part in reversed(parts):
            end *= part.size
            ends.add(end)
    chain = sorted(ends)
    if any(outer % inner for inner, outer in itertools.pairwise(chain)):
        return [CommonPart(size, (None,) * len(several))]
    inner_first = [
        CommonPart(outer // inner, tuple(_digits(parts, inner, outer) for parts in several))
        for inner, outer in itertools.pairwise(chain)
    ]
    return inner_first[::-1]


def _digits(parts: Parts | None, inner: int, outer: int) -> Part | None:
    """The part of an axis that counts from steps of `inner` up to steps of `outer`."""
    end = 1
    for part in reversed(parts or ()):
        if end <= inner < end * part.size:
            return part.outer(inner // end).inner(outer // inner)
        end *= part.size
    return None
