"""Takes the inputs of a pass apart: those of one text alone, or of one in another's place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

PACKED_BY = (
    4  # a table of sizes, such as the frames, rows and columns of images, has so few columns
)


@dataclass(frozen=True)
class TextInputs:
    """The inputs of a pass over several texts.

    given: the arguments and the keywords.
    batch: how many texts there are.
    dim: along which dimension of each tensor the texts are, 0 or 1.
    cuts: whether what only seems to be of the texts is cut apart too: a tensor that a table of
        sizes fits, and a list with a number for each text, such as their lengths.
    """

    given: tuple[tuple, dict[str, Any]]
    batch: int
    dim: int
    cuts: bool = True

    @property
    def are_found(self) -> bool:
        """Whether some tensor has as many rows as there are texts in this dimension."""
        return any(self._has(one) for one in leaves(self.given))

    def alone(self, b: int) -> Any:
        """The inputs of one text: from each tensor that has an axis of texts, its part."""
        if self.batch == 1:
            return self.given
        packed = self.packed if self.cuts else {}

        def part(one: Tensor) -> Tensor:
            dim = self._dim_of(one)
            if dim is not None:
                return one.narrow(dim, b, 1)
            sizes = packed.get(len(one) if one.ndim else 0)
            return one if sizes is None else one.split(sizes)[b]

        return mapped(self.given, part, lambda several: self._of_list(several, [b]))

    def replaced(self, b: int, other: int) -> Any:
        """The inputs with another of the texts in the place of one."""
        places = list(range(self.batch))
        places[b] = other

        def change(one: Tensor) -> Tensor:
            dim = self._dim_of(one)
            if dim is None:
                return one
            return one.index_select(dim, torch.tensor(places, device=one.device))

        return mapped(self.given, change, lambda several: self._of_list(several, places))

    def are_alike(self, b: int, other: int) -> bool:
        """Whether two texts have the same inputs."""
        pairs = zip(leaves(self.alone(b)), leaves(self.alone(other)), strict=True)
        return all(one is same or torch.equal(one, same) for one, same in pairs)

    def without_padding(self, b: int, length: int, keys: Tensor) -> Any:
        """The inputs of one text without its padding; None where no tensor has its length.

        Args:
            b: which text.
            length: with padding.
            keys: the places of its tokens.
        """

        is_cut = len(keys) == length

        def trim(one: Tensor) -> Tensor:
            nonlocal is_cut
            for dim in range(one.ndim):
                if dim != self.dim and one.shape[dim] == length:
                    one, is_cut = one.index_select(dim, keys.to(one.device)), True
            return one

        made = mapped(self.alone(b), trim)
        return made if is_cut else None

    @property
    def seem_cut(self) -> bool:
        """Whether anything was cut apart that only seems to be of the texts."""
        lengths: list[int] = []

        def note(several: list) -> list:
            lengths.append(len(several))
            return several

        mapped(self.given, lambda one: one, note)
        packed = self.packed
        others = (one for one in leaves(self.given) if one.ndim and self._dim_of(one) is None)
        is_one_cut = self.batch in lengths or any(len(one) in packed for one in others)
        return self.cuts and is_one_cut

    def _of_list(self, several: list, places: list[int]) -> list:
        """The numbers of a list at the places of some texts, if it has one for each."""
        is_of_texts = self.cuts and len(several) == self.batch
        return [several[place] for place in places] if is_of_texts else several

    def _has(self, one: Tensor) -> bool:
        return _is_plain(one) and one.ndim > self.dim and one.shape[self.dim] == self.batch

    def _dim_of(self, one: Tensor) -> int | None:
        """The dimension along which a tensor has the texts; None if it has them along none.

        Where tokens have texts second, a mask of padding or a table of ids may have them first.
        """
        if self._has(one):
            return self.dim
        return 0 if self.dim == 1 and _is_table(one) and len(one) == self.batch else None

    @property
    def packed(self) -> dict[int, list[int]]:
        """For each total of sizes that a table tells of the texts, these sizes.

        Models of images take all patches in one tensor, and beside it a table with the frames, rows
        and columns of each image. Whether a table is one is a guess, which the run then proves.
        """
        tables = (one for one in leaves(self.given) if _is_table(one))
        sizes = [
            one.prod(-1).tolist()
            for one in tables
            if len(one) == self.batch and one.shape[1] <= PACKED_BY
        ]
        return {sum(several): several for several in sizes if sum(several) != self.batch}


def _is_table(one: Tensor) -> bool:
    """Whether a tensor is a table of whole numbers, or of True and False."""
    is_whole = not (one.is_floating_point() or one.is_complex() or one.is_quantized)
    return _is_plain(one) and one.ndim == 2 and is_whole


def _is_plain(one: Tensor) -> bool:
    return one.layout == torch.strided and not one.is_nested


def called(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    """The arguments and keywords that inputs are: a mapping, a list of arguments, or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, list | tuple) else ((inputs,), {})


def has_list(value: Any, length: int) -> bool:
    """Whether inputs have a list of so many tensors, or of what has tensors in it."""
    if isinstance(value, Mapping):
        return any(has_list(one, length) for one in value.values())
    if not isinstance(value, list | tuple) or not leaves(value):
        return False
    return len(value) == length or any(has_list(one, length) for one in value)


def leaves(value: Any) -> list[Tensor]:
    """All tensors in the inputs, however deep."""
    found: list[Tensor] = []

    def note(one: Tensor) -> Tensor:
        found.append(one)
        return one

    mapped(value, note)
    return found


def _as_it_is(several: list) -> list:
    return several


def mapped(
    value: Any,
    change: Callable[[Tensor], Tensor],
    of_numbers: Callable[[list], list] = _as_it_is,
) -> Any:
    """The inputs with every tensor in them changed by a function, and every list of numbers."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        changed = {key: mapped(one, change, of_numbers) for key, one in value.items()}
        with suppress(Exception):  # of a class that is made in another way
            made: Any = type(value)(changed)  # type: ignore[call-arg]
            if isinstance(made, Mapping) and made.keys() == changed.keys():
                return made  # such as a tokenizer's, which is no dict
        return changed
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        if value and all(isinstance(one, int | float) for one in value):
            return type(value)(of_numbers(list(value)))
        return type(value)(mapped(one, change, of_numbers) for one in value)
    # a NamedTuple, but for torch's, whose numbers and sizes hang together
    if isinstance(value, tuple) and not isinstance(value, PackedSequence):
        return value._make(mapped(one, change, of_numbers) for one in value)  # type: ignore
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value) if one.init]
        changed = {name: mapped(getattr(value, name), change, of_numbers) for name in names}
        return dataclasses.replace(value, **changed)
    return value
