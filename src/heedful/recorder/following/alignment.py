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
from typing import NamedTuple, TypeAlias

from torch import Tensor

from heedful.recorder.following.strides import Axis, Parts

Step: TypeAlias = tuple[int, int]  # the size of a piece of an axis, and its stride


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
        # the tensors of a call have most axes in common
        for part in itertools.chain(*dict.fromkeys(itertools.chain(*views))):
            ends = self._ends.setdefault(part.axis, {1, part.axis.size})
            ends |= {part.step, part.step * part.size}
            self._flags.setdefault(part.axis, part.feature)

    def split(self, axis: Axis, inner: int) -> None:
        """Take an axis apart in steps of `inner`: an axis of 12 by 4 becomes atoms of 3 and 4."""
        self._ends.setdefault(axis, {1, axis.size}).add(inner)
        self._made.clear()

    def atoms(self, parts: Parts) -> list[Atom]:
        """The atoms that one axis of a tensor is made of, the outer ones first.

        The list is the same each time, and not to be changed.

        Raises:
            TypeError: views that take an axis apart in ways that do not fit.
        """
        made = self._made.get(parts)
        if made is None:
            made = self._made[parts] = self._atoms(parts)
        return made

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
    `q.permute(0, 2, 1, 3)`. A group of which the tensor has no atom gets size 1; one of which it
    has some is repeated along the others. The tensor may have fewer axes than `axes`, or some of
    size 1, where it broadcasts. It is a view if strides allow.

    Raises:
        TypeError: an axis of which the tensor has a part only, or one that is of no group.
    """
    strides, rest = _strides(tensor, axes[len(axes) - tensor.ndim :], order)
    split: list[list[Step]] = []
    for group in groups:
        steps: list[Step] = []
        if not strides.keys().isdisjoint(group):
            for atom in group:
                steps.append((atom.size, strides.pop(atom, 0)))
        split.append(steps)
    if strides:
        raise TypeError(
            "an axis that is of neither queries, keys, heads nor texts; tell the axes, as "
            'record(model, axes={"*attn": "b h n d"})'
        )
    split.append(rest)
    whole: list[Step] = []
    for steps in split:
        joined = steps[0] if len(steps) == 1 else _joined(steps)
        if joined is None:
            apart = _strided(tensor, [step for steps in split for step in steps])
            return apart.reshape([math.prod([size for size, _ in steps]) for steps in split])
        whole.append(joined)
    return _strided(tensor, whole)


def _strided(tensor: Tensor, steps: list[Step]) -> Tensor:
    sizes, strides = zip(*steps, strict=True)
    return tensor.as_strided(sizes, strides)


def _strides(
    tensor: Tensor, axes: Sequence[Parts | None], order: Order
) -> tuple[dict[Atom, int], list[Step]]:
    """The stride of each atom of a tensor, and sizes and strides of the axes that are None.

    Axes of size 1 are left out.
    """
    strides: dict[Atom, int] = {}
    rest: list[Step] = []
    for size, stride, parts in zip(tensor.shape, tensor.stride(), axes, strict=True):
        if size == 1:
            continue
        if parts is None:
            rest.append((size, stride))
            continue
        whole = 1
        for atom in reversed(order.atoms(parts)):
            if atom in strides:
                raise TypeError("a diagonal of queries and keys")
            strides[atom] = whole * stride
            whole *= atom.size
        if whole != size:
            raise TypeError("a part of the keys alone")
    return strides, rest


def _joined(steps: list[Step]) -> Step | None:
    """Pieces of an axis, the outer ones first, as one axis; None if no stride runs along them."""
    size, stride = 1, 1
    for inner, step in reversed(steps):
        if size > 1 and step != size * stride:
            return None
        size, stride = size * inner, step if size == 1 else stride
    return size, stride
