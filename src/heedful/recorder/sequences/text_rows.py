"""Decides how many texts a pass has, from the sizes of its inputs and where a call comes from.

An input of one row is one text, or the same for all texts of another input: queries that each text
is asked, a bank that each text reads, positions. So one row tells that there is one text where no
other input has more, or where queries and keys both come from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from heedful.recorder.observed import Batch

# The number of an input, and a dimension of it
Place: TypeAlias = tuple[int, int]
Places: TypeAlias = tuple[Place, ...]

# Parts of names of arguments that are tables of queries × keys, or tell which keys are hidden
TABLES = ("mask", "bias")
# Parts of names of arguments that only say something of tokens: where they stand, of which kind
ASIDE = ("mask", "type", "segment", "position", "keep")
# Those of whole numbers that are no ids of what is read
NO_IDS = (*ASIDE, "label", "target")


class TextRows:
    """The inputs of a pass, by their numbers, with what their rows tell of the number of texts.

    Args:
        names: of the arguments.
        inputs: the tensors.
    """

    def __init__(self, names: Sequence[str], inputs: Sequence[Tensor]) -> None:
        self._names, self._inputs = names, inputs

    def batch(self, places: Places = (), of_keys: Places = (), shared: Places = ()) -> Batch:
        """How many texts there are, and along which axis of the inputs.

        Args:
            places: where the queries of a call come from. Texts are along the other dimension of
                that input, so that the call tells whether positions come first; of texts packed
                into one it does not, nor of frames of videos that stand in the batch.
            of_keys: where its keys come from.
            shared: where what both have comes from.
        """
        packed = {number for number, dim in places if dim == 0 and (number, 1) in places}
        split = {number for number, dim in shared if dim == 0 and (number, 0) in places}
        axis = self._beside_keys(of_keys) if not places else 0
        for number, dim in places:
            sizes, is_whole = self._inputs[number].shape, are_ids(self._inputs[number])
            if number in packed and (len(sizes) > 2 or is_whole):
                continue
            if len(sizes) == 1 or (len(sizes) == 2 and not is_whole and dim == 0):
                return Batch(sizes[0]) if dim else self._of_one_row(number, None, of_keys)
            if number in split:  # videos × frames: of one dimension, and it is the first
                return Batch(sizes[0], False, (number, 0), True)
            axis = 1 if dim == 0 else 0
            if self._is_of_all_texts(number, axis):
                continue
            if sizes[axis] > 1:
                return Batch(sizes[axis], True, (number, axis), True)
            if dim or not self._are_second(of_keys, number):
                return self._of_one_row(number, axis, of_keys)
            axis = 0
        return self._by_sizes(axis, of_keys)

    def _beside_keys(self, of_keys: Places) -> int:
        """The axis of texts where only the keys tell: beside theirs in vectors of tokens."""
        are_first = of_keys and all(dim == 0 and self._inputs[n].ndim == 3 for n, dim in of_keys)
        return 1 if are_first else 0

    def _are_second(self, of_keys: Places, number: int) -> bool:
        """Whether the keys stand second in another input: then what stands first is no query."""
        return any(n != number and dim == 1 and self._inputs[n].ndim == 3 for n, dim in of_keys)

    def _of_one_row(
        self, number: int, axis: int | None, of_keys: Places, asks: bool = True
    ) -> Batch:
        """The texts where an input has one row: it may be the one text, or the same for all texts
        of another input.

        Where queries and keys come from it, it is a text. What ids are read is one too, whatever
        stands beside it, as several images do; only keys of an input of more texts say otherwise.

        Args:
            axis: along which it has one row; None where it has no axis of texts.
            asks: whether the queries come from it.
        """
        more = self._with_more(number, axis or 0)
        is_read = are_ids(self._inputs[number]) and not is_other(self._names[number])
        answering = {other for other, _ in of_keys} if is_read or (asks and of_keys) else set(more)
        place = next(((one, axis or 0) for one in more if one in answering), None)
        if place is not None:
            return Batch(self._inputs[place[0]].shape[place[1]], False, place, asks)
        items = self._items(number)
        # where one item asks another, both are of one text
        if len(items) > 1 and {other for other, _ in of_keys}.isdisjoint({*items} - {number}):
            return Batch(len(items), False)
        place = None if axis is None else (number, axis)
        return Batch(1, not more, place, asks and place is not None)

    def _by_sizes(self, axis: int, of_keys: Places) -> Batch:
        """How many texts there are where the queries do not tell it: as many as rows of ids, else
        of the first input.
        """
        several = [
            number
            for number, one in enumerate(self._inputs)
            if one.ndim > 1 and not self._is_of_all_texts(number, axis)
        ]
        if not several:
            return Batch(1 if self._inputs and self._inputs[0].ndim == 1 else None, False)
        ids = [number for number in several if are_ids(self._inputs[number])]
        plain = [number for number in several if not self._is_table(number)]
        number = (ids or plain or several)[0]
        first, size = self._inputs[number], self._inputs[number].shape[axis]
        is_flat = first.ndim == 2 and not are_ids(first)
        others = (self._inputs[other] for other in several)
        tall = (one for one in others if one.ndim > 2 or are_ids(one))
        is_sure = not is_flat and all(one.shape[axis] == size for one in tall)
        if size > 1:
            return Batch(size, is_sure, (number, axis))
        found = self._of_one_row(number, axis, of_keys, asks=False)
        return found._replace(is_sure=found.is_sure and is_sure)

    def _is_of_all_texts(self, number: int, axis: int) -> bool:
        """Whether an input is the same for all texts, as a table (1, L) of positions often is.

        Then others are (texts, L), or (texts, L, D) where they are vectors.
        """
        sizes = self._inputs[number].shape
        return sizes[axis] == 1 and any(
            one.shape[axis] > 1 and one.shape[1 - axis] == sizes[1 - axis]
            for other, one in enumerate(self._inputs)
            if one.ndim == (3 if one.is_floating_point() else 2) and not self._is_table(other)
        )

    def _items(self, number: int) -> list[int]:
        """The inputs that stand in a list with this one, each perhaps a text of its own.

        Images and heads, of four axes, are of several texts themselves.
        """
        base, one = self._names[number].split("[")[0], self._inputs[number]
        if one.ndim > 3:
            return [number]
        return [
            place
            for place, (name, other) in enumerate(zip(self._names, self._inputs, strict=True))
            if name.split("[")[0] == base and other.dtype == one.dtype and other.ndim == one.ndim
        ]

    def _with_more(self, number: int, axis: int) -> list[int]:
        """The inputs that may be of several texts, along an axis where this one has one row.

        Those are vectors of tokens, images and ids. Where positions come first, others are vectors
        too, and ids that have as many of them.
        """
        length = self._inputs[number].shape[0]
        return [
            other
            for other, one in enumerate(self._inputs)
            if (one.is_floating_point() and one.ndim > 2)
            or (are_ids(one) and not is_other(self._names[other]))
            if axis == 0 or one.ndim == 3 or (one.ndim == 2 and len(one) == length)
            if one.shape[axis] > 1 and not self._is_table(other)
        ]

    def _is_table(self, number: int) -> bool:
        """Whether an input is a mask or a bias, which tells nothing of texts by its rows."""
        name = self._names[number].lower()
        return self._inputs[number].dtype == torch.bool or any(part in name for part in TABLES)


def are_ids(tensor: Tensor) -> bool:
    """Whether a tensor may be ids of tokens: a table of whole numbers."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.ndim == 2 and whole


def plain(name: str) -> str:
    """The name of a tensor of the inputs, without that of what holds it, and without its number.

    >>> plain("document.ids[1]")
    'ids'
    """
    return name.rpartition(".")[2].split("[")[0]


def is_aside(name: str) -> bool:
    """Whether what has this name is beside tokens and none of them: places, kinds, or a mask."""
    return any(part in plain(name) for part in ASIDE)


def is_other(name: str) -> bool:
    """Whether whole numbers of this name are no ids of tokens."""
    return any(part in plain(name) for part in NO_IDS)
