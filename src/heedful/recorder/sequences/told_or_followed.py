"""Decides whose the axes of a call are: by what the user told, else by what was followed.

The atoms of a call's axes come in by their sides (`Sides`); they go out in `Groups`, as sequences,
heads, queries and keys. What the user told is in `told_axes.py`, what was followed in
`axis_owners.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from heedful.recorder.following.alignment import Atom, Order
from heedful.recorder.following.strides import Axis, Parts
from heedful.recorder.observed import Batch
from heedful.recorder.sequences.axis_owners import Groups, Sides, owned
from heedful.recorder.sequences.text_order import (
    Origins,
    are_in_order,
    axes_of,
    followed,
    moved_by,
    pairs_of,
    parts_of,
    texts_first,
    total,
    unknown_order,
)
from heedful.recorder.sequences.text_rows import Place
from heedful.recorder.sequences.told_against_followed import against_followed
from heedful.recorder.sequences.told_axes import TokenAxes, grouped


@dataclass
class Owning:
    """Decides whose the axes of a call are.

    texts: gives the number of texts, from where in the inputs the queries, the keys, and what both
        have come.
    told: gives what the user or the module tells of scores of so many axes, None if nothing.
    """

    texts: Callable[..., Batch]
    told: Callable[[int], TokenAxes | None]

    def groups(
        self, sides_of: Callable[[], Sides], order: Order, origins: Origins, axes: list[Parts]
    ) -> Groups:
        """The atoms of a call by their owners.

        Args:
            sides_of: gives the atoms by their sides; asked again where an axis was split since.
            order: of the call.
            origins: the parts that the axes of the scores were made from.
            axes: the axes of the scores, as their softmax had them.
        """
        sides = sides_of()
        places = [_places(side, origins) for side in (sides.asking, sides.keys, sides.shared)]
        batch = self.texts(*places)
        told = self.told(len(axes))
        if told is not None:
            groups = _as_told(grouped(told, sides, order, axes), told, origins, batch)
            groups.inferred |= against_followed(told, groups, order, origins)
        else:
            if _split_unknown(sides, order, batch):
                sides = sides_of()
            last = functools.partial(_last, sides, order, axes)
            groups = owned(sides, order, origins, batch, last)
        is_projected = sides.sums_features  # else the keys may be a cache that an input holds
        groups.is_of_two = is_projected and _are_of_two_texts(groups, sides, origins)
        asking, answering = parts_of(groups.queries, origins), parts_of(groups.keys, origins)
        texts = pairs_of(groups.sequences, origins)
        groups.followed = followed(tuple(asking), tuple(answering), texts)
        beside = axes_of(groups.sequences, origins)
        groups.are_windows = any(part.axis in beside for part in asking)
        return groups


def _given(atoms: list[Atom], origins: Origins) -> list[Axis]:
    """The axes of the inputs that atoms are parts of."""
    found = []
    for atom in atoms:
        for part in origins.get(atom.axis, ()):
            if part is not None and part.axis.given is not None:
                found.append(part.axis)
    return found


def _places(atoms: list[Atom], origins: Origins) -> list[Place]:
    """Where in the inputs atoms come from: the numbers of inputs, and their dimensions."""
    return [axis.given for axis in _given(atoms, origins) if axis.given is not None]


def _are_of_two_texts(groups: Groups, sides: Sides, origins: Origins) -> bool:
    """Whether queries and keys come from other inputs, and so are not of one text.

    Where something was put elsewhere along an axis, the other text may have been, as into a cache;
    and where there are as many of both, inputs may be added to each other, as positions are.
    """
    if total(groups.queries) == total(groups.keys):
        return False
    several = [_given(side, origins) for side in (sides.asking, sides.keys)]
    if any(axis.moved for axes in several for axis in axes):
        return False
    of_queries, of_keys = ({axis.given[0] for axis in axes if axis.given} for axes in several)
    return bool(of_queries and of_keys) and of_queries.isdisjoint(of_keys)


def _as_told(groups: Groups, told: TokenAxes, origins: Origins, batch: Batch) -> Groups:
    """The atoms by the owners that were told, the texts in the order of the inputs."""
    sequences = texts_first(groups.sequences, origins, batch)
    moved = moved_by(sequences, origins, batch)
    follows = are_in_order(sequences, origins, batch)
    groups = replace(groups, sequences=sequences, batch=batch, follows=follows, moved=moved)
    if moved:
        groups.inferred["texts"] = unknown_order(total(sequences), batch, moved)
    _doubt(groups, told, batch)
    return groups


def _doubt(groups: Groups, told: TokenAxes, batch: Batch) -> None:
    """Note as inferred a number of texts that was told, where the inputs have another one."""
    if not batch.is_sure or batch.texts is None:
        return
    letters = {letter for axis in told.axes for letter in axis}
    texts = told.sizes.get("b", 1)
    # where b shares its axis with others, the inputs told its size
    is_other = ["b"] in told.axes and texts not in (1, batch.texts)
    if is_other or ("b" not in letters and batch.texts != 1):
        groups.inferred["texts"] = f"{texts} texts, as told; the inputs have {batch.texts}"


def _last(sides: Sides, order: Order, axes: list[Parts]) -> list[Atom]:
    """The atoms of the axis of the scores next to the keys: the queries, most often."""
    places = [
        place
        for place, parts in enumerate(axes)
        if parts and all(atom in sides.keys for atom in order.atoms(parts))
    ]
    if not places or len(axes) < 2:
        return []
    place = places[0] - 1 if places[0] else 1
    return order.atoms(axes[place])


def _split_unknown(sides: Sides, order: Order, batch: Batch) -> bool:
    """Split the one axis of which nothing is known by the number of texts; whether that was done.

    An axis of 12 with 3 texts becomes 3 texts × 4.
    """
    unknown = [atom for atom in sides.shared if order.flag(atom) is None]
    texts = batch.texts or 1
    if len(unknown) != 1 or texts == 1 or unknown[0].size % texts or unknown[0].size == texts:
        return False
    order.split(unknown[0].axis, unknown[0].step * unknown[0].size // texts)
    return True
