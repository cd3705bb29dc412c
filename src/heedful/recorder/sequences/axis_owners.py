"""Decides from what was followed whose the axes of a call are: texts, heads, queries or keys.

An axis of features, which a product with parameters made for each token, is of heads. One that
stood beside the features is of texts, or of parts of a text such as windows. Both were followed.
Which of several texts comes first cannot be followed, nor can anything of tensors that came from no
such product: there the sizes and places of the axes give a guess, and `inferred` says so.

For scores of `q.view(B, N, H, d).transpose(1, 2)` and keys like it, B and H are shared by both
sides, N asks, M is what the softmax goes over. H is a part of the features, so it is the heads; B
stood beside them and was followed to the inputs, so it is the texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from heedful.recorder.following.alignment import Atom, Order
from heedful.recorder.following.strides import Axis, Part
from heedful.recorder.observed import Batch, Followed
from heedful.recorder.sequences.text_order import (
    Origins,
    are_in_order,
    axes_of,
    digits_of,
    is_of_texts,
    moved_by,
    place,
    texts_first,
    total,
    unknown_order,
)

Atoms: TypeAlias = Callable[[], list[Atom]]


@dataclass
class Groups:
    """The atoms of a call by their owners.

    sequences: texts and their parts, which a recording has as sequences of their own.
    inferred: what is a guess, in words, under "heads" or "texts".
    batch: the texts of the pass.
    follows: whether all sequences were followed to the texts in the inputs, in their order.
    moved: the operation that put texts in other places, if one did.
    is_of_two: whether the keys were followed to another input than the queries.
    followed: where its tokens were followed to.
    are_windows: whether sequences and queries were followed to one axis, of which each has a part.
    """

    sequences: list[Atom]
    heads: list[Atom]
    queries: list[Atom]
    keys: list[Atom]
    inferred: dict[str, str] = field(default_factory=dict)
    batch: Batch | None = None
    follows: bool = False
    moved: str = ""
    is_of_two: bool = False
    followed: Followed = field(default_factory=Followed)
    are_windows: bool = False

    @property
    def all(self) -> list[list[Atom]]:
        """The four groups in the order of a map: (sequences, heads, queries, keys)."""
        return [self.sequences, self.heads, self.queries, self.keys]


class Sides(NamedTuple):
    """Atoms of a call by the side of the product that has them, before they have owners.

    shared: atoms that both sides have.
    asking: atoms that only the side of the queries has.
    answering: atoms that only the side of the keys has, over which the softmax did not go.
    keys: atoms over which it did.
    sums_features: whether the product sums over features, which then are no axis of the scores.
    """

    shared: list[Atom]
    asking: list[Atom]
    answering: list[Atom]
    keys: list[Atom]
    sums_features: bool = False


def owned(sides: Sides, order: Order, origins: Origins, batch: Batch, last: Atoms) -> Groups:
    """Give each atom of a call its owner.

    Args:
        sides: the atoms.
        order: of the call; it knows which atoms are features.
        origins: the parts that the axes of the scores were made from, of query and key.
        batch: the texts of the pass.
        last: gives the atoms of the axis of the scores next to the keys; if in doubt, they are
            queries.
    """
    sides = _with_texts_beside(sides, origins, batch)
    is_alone = len(sides.asking) == 1  # before others are taken to ask, which is a guess
    sides = _with_queries(sides, order, origins, batch)
    beside = [*sides.shared, *sides.answering]
    flags, apart = _flags(sides, order, origins)
    heads = [atom for atom in beside if flags[atom] is True]
    queries, packed, is_guess = _asking(sides, order, flags, last)
    positions = axes_of(queries, origins)
    for atom in beside:  # windows come from the same axis of tokens as the queries inside them
        if flags[atom] is None and positions & axes_of([atom], origins):
            flags[atom] = False
    sequences = [atom for atom in beside if flags[atom] is False]
    unknown = [atom for atom in beside if flags[atom] is None]
    apart = [atom for atom in apart if not is_of_texts(atom, origins, batch)]
    apart = [atom for atom in apart if atom in beside or not is_alone]
    inferred = {}
    are_clear = is_alone and bool(heads)  # the only atom that asks is the queries
    asking = [atom for atom in sides.asking if is_guess or (flags[atom] is None and not are_clear)]
    doubtful = [*unknown, *apart, *asking]
    if doubtful:
        sizes = " × ".join(str(atom.size) for atom in doubtful)
        inferred["heads"] = (
            f"whether {sizes} are heads, queries or texts, by their places and sizes: no product "
            "with parameters was seen that made them"
        )
        more, left = _guessed(unknown, sequences, origins, batch)
        sequences, heads = sequences + more, left + heads
    heads = _by_number([*heads, *packed], origins)
    sequences, sure = _with_texts_first(sequences, origins, batch)
    several, moved = total(sequences), moved_by(sequences, origins, batch)
    is_settled = batch.texts == 1 if several == 1 else sure
    if not is_settled:
        inferred["texts"] = unknown_order(several, batch, moved)
    follows = are_in_order(sequences, origins, batch)
    return Groups(sequences, heads, queries, sides.keys, inferred, batch, follows, moved)


def _flags(
    sides: Sides, order: Order, origins: Origins
) -> tuple[dict[Atom, bool | None], list[Atom]]:
    """What is known of each atom beside the keys: features (True), beside them (False), or neither.

    With it, the atoms that stand beside the features of what seems to be one head. Where a model is
    given its heads, these stand there too.
    """
    beside = [*sides.shared, *sides.answering]
    flags = {atom: order.flag(atom) for atom in (*beside, *sides.asking)}
    for atom in sides.asking:  # heads cannot be among the keys, over which the softmax goes
        if flags[atom] is None and digits_of([atom], origins) & digits_of(sides.keys, origins):
            flags[atom] = False
    has_heads = any(flags[atom] is True for atom in beside)
    apart: list[Atom] = []
    if has_heads or sides.sums_features:
        # features were seen: what was not put together since then stood beside them
        apart = [a for a in flags if flags[a] is None and not _is_doubtful(a, origins)]
        if not has_heads:
            apart = _of_whole_axes(apart, [*flags, *sides.keys], origins)
        flags |= dict.fromkeys(apart, False)
    return flags, [] if has_heads else apart


def _of_whole_axes(several: list[Atom], all_: list[Atom], origins: Origins) -> list[Atom]:
    """Those atoms whose axes a call has among its own as a whole.

    What is left of another one was projected, as the width of heads is: then this may be heads.
    """
    sizes: dict[Axis, int] = {}
    for digit in digits_of(all_, origins):
        sizes[digit.axis] = sizes.get(digit.axis, 1) * digit.size
    return [
        atom
        for atom in several
        if all(sizes[axis] >= axis.size for axis in axes_of([atom], origins))
    ]


def _is_doubtful(atom: Atom, origins: Origins) -> bool:
    """Whether an atom is of an axis that may be heads, as a product or `stack` makes it."""
    return any(axis.is_doubtful for axis in axes_of([atom], origins))


def _with_queries(sides: Sides, order: Order, origins: Origins, batch: Batch) -> Sides:
    """The sides, where no atom asks: in one text, an axis that repeats the keys is of queries.

    One that repeats the query, such as a learned one, is of parts of the text, each with its keys.
    """
    if sides.asking or batch.texts != 1:
        return sides
    repeated = [
        atom
        for atom in sides.shared
        if order.flag(atom) is not True and _repeats_keys(*origins.get(atom.axis, (None, None)))
    ]
    shared = [atom for atom in sides.shared if atom not in repeated]
    return sides._replace(shared=shared, asking=repeated)


def _with_texts_beside(sides: Sides, origins: Origins, batch: Batch) -> Sides:
    """The sides, where all texts ask the same keys, such as those of a memory that was learned.

    Then only the queries have the axis of the texts, beside their own. Where none was followed to
    the texts, what repeats the same queries is taken for it.
    """
    if batch.texts == 1 or len(sides.asking) < 2:
        return sides
    if any(is_of_texts(atom, origins, batch) for atom in (*sides.shared, *sides.keys)):
        return sides
    followed = [atom for atom in sides.asking if is_of_texts(atom, origins, batch)]
    beside = followed or [atom for atom in sides.asking if _is_copied(origins.get(atom.axis, ()))]
    if len(beside) == len(sides.asking):
        return sides
    asking = [atom for atom in sides.asking if atom not in beside]
    return sides._replace(shared=[*beside, *sides.shared], asking=asking)


def _is_copied(parts: Iterable[Part | None]) -> bool:
    return any(part is not None and part.axis.is_copy for part in parts)


def _repeats_keys(of_query: Part | None, of_key: Part | None) -> bool:
    if of_query is None or of_key is None:
        return False
    return of_key.axis.is_copy and not of_query.axis.is_copy


def _asking(
    sides: Sides, order: Order, flags: dict[Atom, bool | None], last: Atoms
) -> tuple[list[Atom], list[Atom], bool]:
    """The atoms that ask: those of queries, those of heads, and whether that is a guess."""
    asking = sides.asking
    features = [atom for atom in asking if flags[atom] is True]
    if asking and len(features) == len(asking):
        are_channels = bool(sides.keys) and all(order.flag(atom) is True for atom in sides.keys)
        queries = [atom for atom in asking if are_channels and atom in last()]
        heads = [atom for atom in asking if atom not in queries]
        return queries, heads, bool(heads)
    rows = [atom for atom in asking if flags[atom] is False]
    if len(rows) + len(features) == len(asking) or len(asking) == 1:
        # groups of heads that share a key are not among the keys: these may be parts of tokens
        are_among_keys = bool(features) and any(order.flag(atom) is True for atom in sides.keys)
        return [atom for atom in asking if atom not in features], features, are_among_keys
    M = math.prod(atom.size for atom in sides.keys)
    unknown = [atom for atom in asking if flags[atom] is None]
    alike = [atom for atom in unknown if atom.size == M]
    beside = [atom for atom in asking if atom in last() and atom not in features]
    queries = rows or (alike if len(alike) == 1 else beside) or unknown
    return queries, [atom for atom in asking if atom not in queries], True


def _guessed(
    unknown: list[Atom], sequences: list[Atom], origins: Origins, batch: Batch
) -> tuple[list[Atom], list[Atom]]:
    """Atoms of which no features are known: those of texts, and those of heads.

    What was followed to the texts is theirs, and what products left as it was stood beside them;
    of the others their sizes tell.
    """
    beside = [
        atom
        for atom in unknown
        if is_of_texts(atom, origins, batch)
        or any(axis.stood_beside for axis in axes_of([atom], origins))
    ]
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
    given = [atom for atom in unknown if place(atom, origins) is not None]
    first = (given or unknown)[:1]
    return first, [atom for atom in unknown if atom not in first]


def _by_number(heads: list[Atom], origins: Origins) -> list[Atom]:
    """The atoms of heads in the order in which the features of their projection count them."""
    if len(heads) < 2:
        return heads
    sources = [next((part for part in origins.get(atom.axis, ()) if part), None) for atom in heads]
    known = [part for part in sources if part is not None]
    if len(known) < len(heads) or len({part.axis for part in known}) > 1:
        return heads
    steps = {atom: part.step * atom.step for atom, part in zip(heads, known, strict=True)}
    return sorted(heads, key=lambda atom: -steps[atom])


def _with_texts_first(
    sequences: list[Atom], origins: Origins, batch: Batch
) -> tuple[list[Atom], bool]:
    """The sequences with those of the texts first, and whether it is certain which these are.

    Where none was followed to the texts, an axis that has as many is taken for theirs.
    """
    if batch.texts is None:
        return sequences, False
    if any(is_of_texts(atom, origins, batch) for atom in sequences):
        return texts_first(sequences, origins, batch), False
    if batch.texts == 1:
        return sequences, batch.is_sure
    alike = [atom for atom in sequences if atom.size == batch.texts][:1]
    return [*alike, *(atom for atom in sequences if atom not in alike)], False
