"""Whose the axes of a call are: texts, parts of a text, heads, queries and keys.

What a product with parameters made for each token is of heads; what stood beside it is of texts, or
of parts of one, such as windows. Both are followed. Which of several texts comes first is not to be
followed, nor is anything of tensors that came from no product: there is a guess, which says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from heedful.recorder.following.alignment import Atom, Order
from heedful.recorder.following.strides import Axis, Part
from heedful.recorder.observed import Batch

Origins = dict[Axis, tuple[Part | None, Part | None]]


@dataclass
class Groups:
    """The atoms of each axis of a call, and what of them is a guess, by what it is of.

    follows: whether sequences were followed to the axis of the texts, in the inputs.
    """

    sequences: list[Atom]
    heads: list[Atom]
    queries: list[Atom]
    keys: list[Atom]
    inferred: dict[str, str] = field(default_factory=dict)
    batch: Batch | None = None
    follows: bool = False

    @property
    def all(self) -> list[list[Atom]]:
        """In the order of a map."""
        return [self.sequences, self.heads, self.queries, self.keys]


class Sides(NamedTuple):
    """Atoms of a call before they have owners.

    shared: of both sides; asking: of the queries alone; answering: of the keys alone, in which
    softmax did not run; keys: in which it did.
    """

    shared: list[Atom]
    asking: list[Atom]
    answering: list[Atom]
    keys: list[Atom]


def owned(sides: Sides, order: Order, origins: Origins, batch: Batch, last: list[Atom]) -> Groups:
    """Give each atom its owner.

    Args:
        sides: the atoms.
        order: of the call.
        origins: what they were before the product.
        batch: the texts.
        last: the atoms of the axis beside the keys, as the softmax had them: queries, if anything.
    """
    sides = _with_queries(sides, order, origins, batch)
    beside = [*sides.shared, *sides.answering]
    flags = {atom: order.flag(atom) for atom in (*beside, *sides.asking)}
    heads = [atom for atom in beside if flags[atom] is True]
    if heads:  # of the last product: what was not put together after it stood beside it
        flags = {
            atom: flag if _is_doubtful(atom, origins) else bool(flag)
            for atom, flag in flags.items()
        }
    queries, packed, is_guess = _asking(sides, order, flags, last)
    positions = _axes_of(queries, origins)
    for atom in beside:  # windows are parts of the axis that queries are a part of
        if flags[atom] is None and positions & _axes_of([atom], origins):
            flags[atom] = False
    sequences = [atom for atom in beside if flags[atom] is False]
    unknown = [atom for atom in beside if flags[atom] is None]
    inferred = {}
    are_clear = len(sides.asking) == 1 and bool(heads)  # without it there would be no queries
    asking = [atom for atom in sides.asking if is_guess or (flags[atom] is None and not are_clear)]
    doubtful = [*unknown, *asking]
    if doubtful:
        sizes = " × ".join(str(atom.size) for atom in doubtful)
        inferred["heads"] = (
            f"whether {sizes} are heads, queries or texts, by their places and sizes: no product "
            "with parameters was seen that made them"
        )
        more, left = _guessed(unknown, sequences, origins, batch)
        sequences, heads = sequences + more, left + heads
    heads = _by_number([*heads, *packed], origins)
    sequences, sure = _texts_first(sequences, origins, batch)
    total = math.prod(atom.size for atom in sequences)
    is_settled = batch.texts == 1 if total == 1 else sure
    if not is_settled:
        inferred["texts"] = _how(total, batch)
    follows = bool(sequences) and all(is_of_texts(atom, origins, batch) for atom in sequences)
    return Groups(sequences, heads, queries, sides.keys, inferred, batch, follows)


def _is_doubtful(atom: Atom, origins: Origins) -> bool:
    return any(axis.is_doubtful for axis in _axes_of([atom], origins))


def _with_queries(sides: Sides, order: Order, origins: Origins, batch: Batch) -> Sides:
    """Of one text, an axis along which keys are only repeated is of queries, if nothing else is."""
    if sides.asking or batch.texts != 1:
        return sides
    repeated = [
        atom
        for atom in sides.shared
        if order.flag(atom) is not True
        and {part.axis.is_copy for part in origins.get(atom.axis, ()) if part} == {True, False}
    ]
    shared = [atom for atom in sides.shared if atom not in repeated]
    return sides._replace(shared=shared, asking=repeated)


def _axes_of(atoms: list[Atom], origins: Origins) -> set[Axis]:
    """Which axes atoms are parts of, where that was followed."""
    return {part.axis for atom in atoms for part in origins.get(atom.axis, ()) if part is not None}


def is_of_texts(atom: Atom, origins: Origins, batch: Batch) -> bool:
    """Whether an axis was followed to that of the texts, in the inputs."""
    return batch.place is not None and _place(atom, origins) == batch.place


def beside_told(sequences: int, batch: Batch, is_known: bool) -> dict[str, str]:
    """What is a guess of sequences that a door has told, beside the texts of the pass.

    Args:
        sequences: how many there are.
        batch: the texts.
        is_known: whether as many sequences as texts are the texts, in their order.
    """
    is_sure = sequences == batch.texts == 1 or (sequences == batch.texts and is_known)
    is_part = batch.texts == 1 and batch.is_sure
    return {} if is_sure or is_part else {"texts": _how(sequences, batch)}


def _asking(
    sides: Sides, order: Order, flags: dict[Atom, bool | None], last: list[Atom]
) -> tuple[list[Atom], list[Atom], bool]:
    """Queries, heads that stand among them, and whether that is a guess."""
    asking = sides.asking
    features = [atom for atom in asking if flags[atom] is True]
    if asking and len(features) == len(asking):  # channels, where keys are features, too
        are_channels = all(order.flag(atom) is True for atom in sides.keys)
        return (asking, [], False) if are_channels else ([], asking, True)
    rows = [atom for atom in asking if flags[atom] is False]
    if len(rows) + len(features) == len(asking) or len(asking) == 1:
        return [atom for atom in asking if atom not in features], features, False
    M = math.prod(atom.size for atom in sides.keys)
    unknown = [atom for atom in asking if flags[atom] is None]
    alike = [atom for atom in unknown if atom.size == M]
    beside = [atom for atom in asking if atom in last and atom not in features]
    queries = rows or (alike if len(alike) == 1 else beside) or unknown
    return queries, [atom for atom in asking if atom not in queries], True


def _guessed(
    unknown: list[Atom], sequences: list[Atom], origins: Origins, batch: Batch
) -> tuple[list[Atom], list[Atom]]:
    """Of atoms of which nothing is known those of texts, by their sizes, and those of heads."""
    beside = [atom for atom in unknown if any(a.stood_beside for a in _axes_of([atom], origins))]
    if beside:
        more, left = _guessed(
            [atom for atom in unknown if atom not in beside], [*sequences, *beside], origins, batch
        )
        return [*beside, *more], left
    texts = batch.texts
    if texts is None or not unknown:
        return unknown[:1], unknown[1:]
    done = math.prod(atom.size for atom in sequences)
    if texts == 1 or (done > 1 and done % texts == 0):
        return [], unknown
    for end in range(1, len(unknown) + 1):
        if math.prod(atom.size for atom in unknown[:end]) == texts:
            return unknown[:end], unknown[end:]
    alike = [atom for atom in unknown if atom.size == texts]
    if alike:
        return alike[:1], [atom for atom in unknown if atom is not alike[0]]
    given = [atom for atom in unknown if _place(atom, origins) is not None]
    first = (given or unknown)[:1]
    return first, [atom for atom in unknown if atom not in first]


def _by_number(heads: list[Atom], origins: Origins) -> list[Atom]:
    """As the features of one projection count them."""
    sources = [next((part for part in origins.get(atom.axis, ()) if part), None) for atom in heads]
    known = [part for part in sources if part is not None]
    if len(known) < len(heads) or len({part.axis for part in known}) > 1:
        return heads
    steps = {atom: part.step * atom.step for atom, part in zip(heads, known, strict=True)}
    return sorted(heads, key=lambda atom: -steps[atom])


def _texts_first(sequences: list[Atom], origins: Origins, batch: Batch) -> tuple[list[Atom], bool]:
    """The axis of the texts before those of their parts; and whether that is settled."""
    if batch.texts is None:
        return sequences, False
    texts = [atom for atom in sequences if _place(atom, origins) == batch.place is not None]
    if not texts and batch.texts == 1:
        return sequences, batch.is_sure
    texts = texts or [atom for atom in sequences if atom.size == batch.texts][:1]
    return [*texts, *(atom for atom in sequences if atom not in texts)], False


def _place(atom: Atom, origins: Origins) -> tuple[int, int] | None:
    """Of which input it is an axis, and of which place there."""
    for part in origins.get(atom.axis, ()):
        if part is not None and part.axis.given is not None:
            return part.axis.given
    return None


def _how(total: int, batch: Batch) -> str:
    if total == 1:
        texts = batch.texts or "unknown"
        return f"of which text the one sequence is: the number of texts is {texts}"
    if batch.texts is None:
        return f"which of the {total} sequences is which text: no input told how many there are"
    if batch.texts == 1:
        return f"whether the {total} sequences are parts of one text, as it is the only one told"
    return (
        f"which of the {total} sequences is which of the {batch.texts} texts, by the order of the "
        "axes"
    )
