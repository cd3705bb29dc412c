"""Puts the tensors of a call in order, however their axes stand: (sequences, heads, N or M, width).

Views of one call may take an axis apart differently: features of 12 are 3 heads × 4 in the queries
and still 12 in the output. `Order` finds the atoms, the finest pieces that all views agree on (here
3 and 4). Once each atom has an owner (`sequences/axis_owners.py`), `aligned` splits a tensor into
its atoms, permutes them and joins those of each owner again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from heedful.recorder.following.strides import Axis, Parts


class Atom(NamedTuple):
    """A piece of an axis that no view of a call takes apart: the digits i // step % size."""

    axis: Axis
    step: int
    size: int


class Order:
    """The atoms of which all axes of a call are made.

    Args:
        views: the axes of each tensor that takes part in the call.
    """

    def __init__(self, views: Iterable[Sequence[Parts]]) -> None:
        self._ends: dict[Axis, set[int]] = {}
        self._flags: dict[Axis, bool | None] = {}
        self._made: dict[Parts, list[Atom]] = {}
        for axes in views:
            for parts in axes:
                for part in parts:
                    ends = self._ends.setdefault(part.axis, {1, part.axis.size})
                    ends |= {part.step, part.step * part.size}
                    self._flags.setdefault(part.axis, part.feature)

    def split(self, axis: Axis, inner: int) -> None:
        """Take an axis apart in steps of `inner`: an axis of 12 by 4 becomes atoms of 3 and 4."""
        self._ends.setdefault(axis, {1, axis.size}).add(inner)
        self._made.clear()

    def atoms(self, parts: Parts) -> list[Atom]:
        """The atoms that one axis of a tensor is made of, the outer ones first.

        Raises:
            TypeError: views that take an axis apart in ways that do not fit.
        """
        if parts not in self._made:  # the tensors of a call have most axes in common
            self._made[parts] = self._atoms(parts)
        return list(self._made[parts])

    def _atoms(self, parts: Parts) -> list[Atom]:
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
        """True for features, False for what stands beside them (as tokens do), None if unknown."""
        return self._flags.get(atom.axis)


def aligned(
    tensor: Tensor, axes: Sequence[Parts | None], order: Order, groups: Sequence[Sequence[Atom]]
) -> Tensor:
    """The tensor with one axis for each group of atoms, and a last one for all axes that are None.

    With axes [batch, tokens, heads, None] and groups [[batch], [heads], [tokens]], it is
    `q.permute(0, 2, 1, 3)`. A group of which the tensor has no atom gets size 1. The tensor may
    have fewer axes than `axes`, or some of size 1, where it broadcasts. It is a view if strides
    allow.

    Raises:
        TypeError: an axis of which the tensor has a part only, or one that is of no group.
    """
    split, present = _split(tensor, axes[len(axes) - tensor.ndim :], order)
    place = {atom: place for place, atom in enumerate(present) if atom is not None}
    ordered = [place[atom] for group in groups for atom in group if atom in place]
    if len(ordered) < len(place):
        raise TypeError("an axis that is of neither queries, keys, heads nor texts")
    rest = [place for place, atom in enumerate(present) if atom is None]
    split = split.permute([*ordered, *rest])
    width = split.shape[len(ordered) :]
    sizes = [[atom.size if atom in place else 1 for atom in group] for group in groups]
    full = [  # a group of which some atoms are there gets all: it is repeated along the others
        [atom.size for atom in group] if any(size > 1 for size in have) else have
        for group, have in zip(groups, sizes, strict=True)
    ]
    if full != sizes:
        split = split.reshape(*itertools.chain(*sizes), *width)
        split = split.expand(*itertools.chain(*full), *width)
    return split.reshape(*map(math.prod, full), math.prod(width))


def _split(
    tensor: Tensor, axes: Sequence[Parts | None], order: Order
) -> tuple[Tensor, list[Atom | None]]:
    """The tensor with an axis for each of its atoms, and which atom each axis is (None for None).

    Axes of size 1 are left out.
    """
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
    return tensor.reshape(shape), present
