"""Says which sequence of a call is which text, as far as its axes were followed to the inputs.

The texts of a pass are along one axis of an input. A call may have that axis in another order:
taken apart and put together otherwise, as `x.view(2, 2, N, D).transpose(0, 1)` does. Its digits
tell that order, and the sequences are put back into it. Where an operation put the texts themselves
elsewhere, as `x[order]` does, no axis tells the order any more, and that is said.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

from heedful.recorder.following.alignment import Atom
from heedful.recorder.following.strides import Axis, Part, Parts, are_whole
from heedful.recorder.observed import Batch, Followed, Tokens

Origins: TypeAlias = dict[Axis, tuple[Part | None, Part | None]]


def is_of_texts(atom: Atom, origins: Origins, batch: Batch) -> bool:
    """Whether an atom was followed to the axis of the texts in the inputs."""
    return batch.place is not None and place(atom, origins) == batch.place


def place(atom: Atom, origins: Origins) -> tuple[int, int] | None:
    """The number of the input that an atom was followed to, and its dimension there, or None."""
    found = _in_input(atom, origins)
    return None if found is None else found.axis.given


def _in_input(atom: Atom, origins: Origins) -> Atom | None:
    """The digits of an axis of an input that an atom is; None where it was followed to none."""
    for part in origins.get(atom.axis, ()):
        if part is not None and part.axis.given is not None:
            return Atom(part.axis, part.step * atom.step, atom.size)
    return None


def axes_of(atoms: list[Atom], origins: Origins) -> set[Axis]:
    """The axes that atoms are parts of, as far as they were followed."""
    return {part.axis for part in parts_of(atoms, origins)}


def parts_of(atoms: list[Atom], origins: Origins) -> list[Part]:
    """The parts of other axes that atoms are, in their order, as far as they were followed."""
    found = []
    for atom in atoms:
        for part in origins.get(atom.axis, ()):
            if part is not None:
                found.append(Part(part.axis, part.step * atom.step, atom.size, part.feature))
    return found


def digits_of(atoms: list[Atom], origins: Origins) -> set[Atom]:
    """The digits of other axes that atoms are, as far as they were followed."""
    return {Atom(part.axis, part.step, part.size) for part in parts_of(atoms, origins)}


def texts_first(sequences: list[Atom], origins: Origins, batch: Batch) -> list[Atom]:
    """The sequences with the axis of the texts first, its outer digits before its inner ones."""
    texts = [atom for atom in sequences if is_of_texts(atom, origins, batch)]
    steps = {atom: found.step for atom in texts if (found := _in_input(atom, origins)) is not None}
    texts.sort(key=lambda atom: -steps[atom])
    return [*texts, *(atom for atom in sequences if atom not in texts)]


def are_in_order(sequences: list[Atom], origins: Origins, batch: Batch) -> bool:
    """Whether sequences are the texts of the inputs, each once, in the order that they have there.

    That is so if their atoms are all digits of the axis of the texts, the outer ones first, and of
    keys too where these have texts of their own.
    """
    if not sequences or not all(is_of_texts(atom, origins, batch) for atom in sequences):
        return False
    digits = [found for atom in sequences if (found := _in_input(atom, origins)) is not None]
    axis = digits[0].axis
    step = axis.size
    for digit in digits:
        if digit.axis is not axis or digit.step * digit.size != step:
            return False
        step = digit.step
    # keys repeat those of all texts, or of none
    keys = [key for _, key in pairs_of(sequences, origins) if key is not None]
    is_mixed = len({key.axis.is_copy for key in keys}) > 1
    are_of_one = not is_mixed and all(_are_of_one_text(atom, origins) for atom in sequences)
    return step == 1 and are_of_one and not moved_by(sequences, origins, batch)


def _are_of_one_text(atom: Atom, origins: Origins) -> bool:
    """Whether queries and keys are the same digits of the texts, or the keys are of all texts."""
    query, key = origins.get(atom.axis, (None, None))
    if query is None or key is None or key.axis.is_copy or query.axis.is_copy:
        return True
    return key.axis.given is not None and key.step == query.step


def moved_by(sequences: list[Atom], origins: Origins, batch: Batch) -> str:
    """The operation that put texts elsewhere; "" where none is known.

    Keys may be of another input, whose texts are along the same dimension.
    """
    dim = None if batch.place is None else batch.place[1]
    axes = axes_of(sequences, origins)
    of_texts = (axis for axis in axes if axis.given is None or axis.given[1] == dim)
    return next((axis.moved for axis in of_texts if axis.moved), "")


def are_texts(parts: Parts | None, batch: Batch) -> bool:
    """Whether an axis of keys is all texts of an input in their order, or the same for all."""
    if parts is None or batch.place is None:
        return False
    axis = _whole(parts)
    is_given = axis is not None and axis.given is not None and axis.given[1] == batch.place[1]
    return is_given or all(part.axis.is_copy for part in parts)


def followed_to(parts: Parts | None, batch: Batch) -> tuple[bool, str]:
    """Whether an axis of sequences that a door knows is the texts of the inputs, in their order.

    With it, the operation that put texts elsewhere; "" where none is known.
    """
    atoms = [Atom(part.axis, part.step, part.size) for part in parts or ()]
    itself: Origins = {one.axis: (Part(one.axis, 1, one.axis.size), None) for one in atoms}
    return are_in_order(atoms, itself, batch), moved_by(atoms, itself, batch)


Pairs: TypeAlias = tuple[tuple[Part | None, Part | None], ...]


def pairs_of(atoms: list[Atom], origins: Origins) -> Pairs:
    """For each atom its part of the queries and its part of the keys, as they were followed."""

    def own(part: Part | None, atom: Atom) -> Part | None:
        return part and part._replace(step=part.step * atom.step, size=atom.size)

    pairs = [(origins.get(atom.axis, (None, None)), atom) for atom in atoms]
    return tuple([(own(query, atom), own(key, atom)) for (query, key), atom in pairs])


@functools.lru_cache(maxsize=256)  # the layers of a pass ask alike
def followed(asking: Parts, answering: Parts, texts: Pairs) -> Followed:
    """Where queries and keys were followed to.

    Args:
        asking, answering: the parts that queries and keys were made from.
        texts: those that sequences were made from, on either side, the outer ones first.
    """
    of_queries, of_keys = ([pair[side] for pair in texts] for side in (0, 1))
    queries, keys = _tokens(asking, of_queries), _tokens(answering, of_keys)
    return Followed(queries, keys, _are_reordered(asking, answering))


def _tokens(parts: Sequence[Part], texts: Sequence[Part | None]) -> Tokens | None:
    """The tokens of an input that parts are; None where that, or of which rows, is not known."""
    axis = _whole(parts)
    if axis is None or axis.given is None or axis.given[1] != 1:
        return None
    rows, place = [0], (axis.given[0], 0)
    for part in texts:
        if part is None or not (part.axis.is_copy or part.axis.given == place):
            return None
        step = 0 if part.axis.is_copy else part.step
        rows = [row + step * i for row in rows for i in range(part.size)]
    own = [part for part in texts if part is not None and not part.axis.is_copy]
    if own and _whole(own, in_order=False) is None:
        return None
    return Tokens(axis.given[0], tuple(rows))


def _whole(parts: Sequence[Part], in_order: bool = True) -> Axis | None:
    """The one axis of which parts are all digits, none of it put elsewhere; None if there is none.

    in_order: whether the outer digits have to come before the inner ones.
    """
    axes = {part.axis for part in parts}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None or axis.moved or axis.joined or axis.is_copy:
        return None
    is_plain = _go_inwards(parts) or not in_order
    return axis if is_plain and are_whole(tuple(parts)) else None


def _are_reordered(asking: Sequence[Part], answering: Sequence[Part]) -> bool:
    """Whether tokens are known to stand in other places along their text than in the inputs.

    So they do where an operation put them elsewhere, where some are repeated, and where the digits
    of their axis are in another order. Keys count as far as they are of an input that the queries
    are of: a cache has them where it was told to.

    Args:
        asking: the parts that queries were followed to, the outer ones first.
        answering: those of keys.
    """
    inputs = {part.axis.given[0] for part in asking if part.axis.given is not None}
    given = [part for part in answering if part.axis.given is not None]
    keys = [part for part in given if part.axis.given is not None and part.axis.given[0] in inputs]
    if any(part.axis.moved or part.axis.joined for part in (*asking, *keys)):
        return True
    are_repeated = any(part.axis.is_copy for part in asking)
    return are_repeated or not (_go_inwards(asking) and _go_inwards(keys))


def _go_inwards(parts: Sequence[Part]) -> bool:
    """Whether the parts of each axis of an input are its digits from outer to inner ones."""
    inner: dict[Axis, int] = {}
    for part in parts:
        if part.axis.given is not None:
            if part.axis in inner and part.step * part.size != inner[part.axis]:
                return False
            inner[part.axis] = part.step
    return True


def beside_told(
    sequences: int, batch: Batch, is_known: bool, follows: bool = False, moved: str = ""
) -> dict[str, str]:
    """What `inferred` has to say of sequences whose axis a door knows: which text each is of.

    Args:
        sequences: how many there are.
        batch: the texts of the pass.
        is_known: whether the model is known to have sequences in the order of its texts.
        follows: whether they were followed to the texts, in their order.
        moved: the operation that put texts elsewhere, if one did.
    """
    is_whole = sequences == batch.texts
    is_sure = is_whole and (sequences == 1 or follows or (is_known and not moved))
    is_part = batch.texts == 1 and batch.is_sure
    return {} if is_sure or is_part else {"texts": unknown_order(sequences, batch, moved)}


def total(sequences: list[Atom]) -> int:
    """How many sequences there are."""
    return math.prod(atom.size for atom in sequences)


def unknown_order(sequences: int, batch: Batch, moved: str = "") -> str:
    """In words, what is not known of which of so many sequences is of which text."""
    if sequences == 1:
        texts = batch.texts or "unknown"
        return f"of which text the one sequence is: the number of texts is {texts}"
    if batch.texts is None:
        return f"which of the {sequences} sequences is which text: no input told how many there are"
    if batch.texts == 1:
        return (
            f"whether the {sequences} sequences are parts of one text, as it is the only one told"
        )
    how = f"as {moved!r} put texts in other places" if moved else "by the order of the axes"
    return f"which of the {sequences} sequences is which of the {batch.texts} texts, {how}"
