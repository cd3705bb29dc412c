"""What tells whose the axes of a call are: the user's own word, or what was followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from heedful.recorder.following.alignment import Atom, Order
from heedful.recorder.following.strides import Parts
from heedful.recorder.observed import Batch
from heedful.recorder.sequences.owners import Groups, Sides, is_of_texts, owned
from heedful.recorder.sequences.told_axes import TokenAxes, grouped


@dataclass
class Owning:
    """What tells whose the axes of a call are: the texts of the pass, and the user's own word.

    texts: of the pass, by the places of the queries in the inputs.
    told: what is told of scores of so many axes.
    """

    texts: Callable[[list[tuple[int, int]]], Batch]
    told: Callable[[int], TokenAxes | None]

    def groups(self, sides_of: Any, order: Order, origins: dict, axes: list[Parts]) -> Groups:
        """The owners of all atoms of a call, whose softmax had these axes."""
        sides = sides_of()
        batch = self.texts(
            [
                part.axis.given
                for atom in sides.asking
                for part in origins.get(atom.axis, ())
                if part is not None and part.axis.given is not None
            ]
        )
        told = self.told(len(axes))
        if told is not None:
            groups = grouped(told, sides, order, axes)
            follows = all(is_of_texts(atom, origins, batch) for atom in groups.sequences)
            _doubt(groups, told, batch)
            return replace(groups, batch=batch, follows=follows and bool(groups.sequences))
        if _split_unknown(sides, order, batch):
            sides = sides_of()
        return owned(sides, order, origins, batch, _last(sides, order, axes))


def _doubt(groups: Groups, told: TokenAxes, batch: Batch) -> None:
    """Where the inputs have another number of texts than was told, say so."""
    if not batch.is_sure or batch.texts is None:
        return
    letters = {letter for axis in told.axes for letter in axis}
    texts = told.sizes.get("b", 1)
    # of an axis that it shares, the inputs told the size
    is_other = ["b"] in told.axes and texts not in (1, batch.texts)
    if is_other or ("b" not in letters and batch.texts != 1):
        groups.inferred["texts"] = f"{texts} texts, as told; the inputs have {batch.texts}"


def _last(sides: Sides, order: Order, axes: list[Parts]) -> list[Atom]:
    """The atoms of the axis beside that of the keys."""
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
    """Take the one axis of which nothing is known apart, into texts and what each of them has."""
    unknown = [atom for atom in sides.shared if order.flag(atom) is None]
    texts = batch.texts or 1
    if len(unknown) != 1 or texts == 1 or unknown[0].size % texts or unknown[0].size == texts:
        return False
    order.split(unknown[0].axis, unknown[0].step * unknown[0].size // texts)
    return True
