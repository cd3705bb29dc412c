"""Tensors of a call, however their axes stand, as (sequences, heads, queries or keys, width)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from heedful.recorder.following.strides import Axis, Parts


class Atom(NamedTuple):
    """Digits of an axis that no view of a call takes apart."""

    axis: Axis
    step: int
    size: int


class Order:
    """The atoms of which all axes of a call are made.

    Args:
        views: the axes of each tensor that has to do with the call.
    """

    def __init__(self, views: Iterable[Sequence[Parts]]) -> None:
        self._ends: dict[Axis, set[int]] = {}
        self._flags: dict[Axis, bool | None] = {}
        for axes in views:
            for parts in axes:
                for part in parts:
                    ends = self._ends.setdefault(part.axis, {1, part.axis.size})
                    ends |= {part.step, part.step * part.size}
                    self._flags.setdefault(part.axis, part.feature)

    def split(self, axis: Axis, inner: int) -> None:
        """Take an axis apart, so that its last `inner` are a part of their own."""
        self._ends.setdefault(axis, {1, axis.size}).add(inner)

    def atoms(self, parts: Parts) -> list[Atom]:
        """Of one axis of a tensor, the outer ones first.

        Raises:
            TypeError: views that take an axis apart in ways that do not fit.
        """
        made: list[Atom] = []
        for part in parts:
            first, end = part.step, part.step * part.size
            chain = sorted(e for e in self._ends[part.axis] if first <= e <= end)
            if any(outer % inner for inner, outer in itertools.pairwise(chain)):
                raise TypeError("views that take an axis apart in ways that do not fit")
            made += [
                Atom(part.axis, inner, outer // inner)
                for inner, outer in reversed(list(itertools.pairwise(chain)))
            ]
        return made

    def flag(self, atom: Atom) -> bool | None:
        """Whether it is of features, of what stands beside them, or not known."""
        return self._flags.get(atom.axis)


def aligned(
    tensor: Tensor, axes: Sequence[Parts | None], order: Order, groups: Sequence[Sequence[Atom]]
) -> Tensor:
    """A tensor with an axis for each group of atoms, 1 where it has none of them, and one more.

    That is of axes of which None is told, such as the width. The tensor may have fewer axes than
    told, or some of size 1, where it broadcasts. A view, where its strides allow.
    """
    axes = axes[len(axes) - tensor.ndim :]
    present: list[Atom | None] = []
    shape: list[int] = []
    for size, parts in zip(tensor.shape, axes, strict=True):
        if size == 1:
            continue
        if parts is None:
            present.append(None)
            shape.append(size)
            continue
        atoms = order.atoms(parts)
        if math.prod(atom.size for atom in atoms) != size:
            raise TypeError("a part of the keys alone")
        present += atoms
        shape += [atom.size for atom in atoms]
    split = tensor.reshape(shape)
    rest = [place for place, atom in enumerate(present) if atom is None]
    known = {atom for group in groups for atom in group}
    if any(atom is not None and atom not in known for atom in present):
        raise TypeError("an axis that is of neither queries, keys, heads nor texts")
    ordered: list[int] = []
    sizes: list[list[int]] = []
    for group in groups:
        ordered += [present.index(atom) for atom in group if atom in present]
        sizes.append([atom.size if atom in present else 1 for atom in group])
    split = split.permute([*ordered, *rest])
    split = split.reshape(
        *(size for group in sizes for size in group), *split.shape[len(ordered) :]
    )
    full = [
        [atom.size for atom in group] if any(size > 1 for size in have) else have
        for group, have in zip(groups, sizes, strict=True)
    ]
    width = split.shape[sum(map(len, full)) :]
    split = split.expand(*(size for group in full for size in group), *width)
    return split.reshape(*map(math.prod, full), math.prod(width))
