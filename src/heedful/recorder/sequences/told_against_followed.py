"""Says where axes that were told contradict what was followed from operation to operation."""

from __future__ import annotations

from heedful.recorder.following.alignment import Atom, Order
from heedful.recorder.sequences.axis_owners import Groups
from heedful.recorder.sequences.text_order import Origins, axes_of, is_of_texts, place
from heedful.recorder.sequences.told_axes import TokenAxes


def against_followed(
    told: TokenAxes, groups: Groups, order: Order, origins: Origins
) -> dict[str, str]:
    """The doubt about axes as they were told, where something else was followed; else none.

    Features are made for each token, so they can be heads, but no texts nor parts of one; nor
    queries, unless the keys are features too, as where channels attend to each other. The texts of
    the inputs are no heads, and nor is what was followed to stand beside the features.
    """
    are_channels = any(order.flag(atom) is True for atom in groups.keys)
    beside = groups.sequences if are_channels else [*groups.sequences, *groups.queries]
    features = [atom for atom in beside if order.flag(atom) is True]
    rows = [atom for atom in groups.heads if _is_row(atom, groups, order, origins)]
    if not features and not rows:
        return {}
    found = [f"{_sizes(features)} of features"] if features else []
    found += [f"{_sizes(rows)} beside the features told as heads"] if rows else []
    return {"axes": f"axes told as {told.pattern!r}, where was followed: {', '.join(found)}"}


def _is_row(atom: Atom, groups: Groups, order: Order, origins: Origins) -> bool:
    """Whether an atom that was told to be of heads was followed to stand beside the features.

    What is one axis of an input, of which the user tells that it has heads too, may have them.
    """
    mine = axes_of([atom], origins)
    if groups.batch is not None and is_of_texts(atom, origins, groups.batch):
        return not mine & axes_of(groups.sequences, origins)
    if order.flag(atom) is not False:
        return False
    positions = axes_of([*groups.queries, *groups.keys], origins)
    return place(atom, origins) is None or bool(mine & positions)


def _sizes(atoms: list[Atom]) -> str:
    return " × ".join(str(atom.size) for atom in atoms)
