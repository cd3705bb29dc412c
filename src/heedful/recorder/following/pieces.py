"""How pieces stand in one storage that `cat` or `stack` puts together.

Pieces that are views of one storage, as slices of a tensor are, stand in it where their offsets
say. Put together in the order in which they stand, they are the axis again that they were cut from;
in another order, they are of that axis, but it is not known any more which is where.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from heedful.recorder.following.moved import put_elsewhere
from heedful.recorder.following.strides import Part, Parts, View


class Together(NamedTuple):
    """What is known of pieces by where they stand; all None where nothing is.

    outer: the part that counts them, where they stand at equal distances, as `split` leaves them:
        for `q1, q2 = q.split(H * d // 2, dim=-1)` the part of the features of step H · d / 2 and
        size 2. Before the parts of one piece it is the axis that they make.
    whole: the parts of that axis itself, where each begins at the end of the one before it.
    picked: the part of an input's axis along which they stand in any other way.
    """

    outer: Parts | None = None
    whole: Parts | None = None
    picked: Part | None = None

    def elsewhere(self, several: Sequence[Parts | None], size: int, by: str) -> Parts | None:
        """The axis that pieces make which stand in another order; None where that is not known.

        Args:
            several: the parts of that axis in each piece.
            size: its size.
            by: the operation.
        """
        picked, piece = self.picked, several[0]
        if picked is None or piece is None:
            return None
        inner = [part for part in piece if part.axis is not picked.axis]
        if inner and all(one == piece for one in several):
            return (*_moved([picked], len(several), by), *piece)
        return _moved([picked, *inner], size, by)


UNKNOWN = Together()


def _moved(parts: list[Part], size: int, by: str) -> Parts:
    flags = {part.feature for part in parts}
    flag = flags.pop() if len(flags) == 1 else None
    return put_elsewhere(tuple(parts), size, flag, by, parts[0].axis.is_doubtful)


def together(pieces: Sequence[Tensor], view: View, dim: int | None) -> Together:
    """How pieces stand, the first of which is seen as `view`.

    Args:
        pieces: the tensors.
        view: of the first of them.
        dim: along which `cat` puts them one after another; None for `stack`.
    """
    first = pieces[0]
    home = first.untyped_storage()._cdata
    if len(pieces) < 2 or any(one.untyped_storage()._cdata != home for one in pieces[1:]):
        return UNKNOWN
    sizes = [_without(one.shape, dim) for one in pieces]
    strides = [one.stride() for one in pieces]
    if any(one != sizes[0] for one in sizes) or any(one != strides[0] for one in strides):
        return UNKNOWN
    unit = first.element_size()
    offsets = [int(one.storage_offset()) * unit for one in pieces]
    if dim is None or all(one.shape[dim] == first.shape[dim] for one in pieces):
        [distance, *more] = {after - before for before, after in itertools.pairwise(offsets)}
        if not more and distance > 0:
            return Together(outer=_read(view, len(pieces), distance))
    elif (step := unit * strides[0][dim]) > 0:
        ends = [at + step * one.shape[dim] for at, one in zip(offsets, pieces, strict=True)]
        if offsets[1:] == ends[:-1]:
            return Together(whole=_read(view, sum(one.shape[dim] for one in pieces), step))
    return Together(picked=_picked(view, offsets))


def _without(sizes: Sequence[int], dim: int | None) -> list[int]:
    return [size for at, size in enumerate(sizes) if dim is None or at != dim % len(sizes)]


def _read(view: View, size: int, stride: int) -> Parts | None:
    return View(view.storage, (size,), (stride,)).axes()[0]


def _picked(view: View, offsets: list[int]) -> Part | None:
    """The part of an input's axis along which pieces stand at these offsets; None for no one."""
    low, step = min(offsets), 0
    for one in offsets:
        step = math.gcd(step, one - low)
    if not step:
        return None
    for part, unit in view.storage.items():
        is_along = step % unit == 0 and max(offsets) - low < unit * part.size
        if is_along and part.axis.given is not None:
            return part
    return None
