"""Positions of tokens in a text, and where they are in a call."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.recording.checks import is_integer

Spec: TypeAlias = int | slice | Iterable[int]


@dataclass(frozen=True)
class Positions:
    """Positions in a text: a slice, or numbers; negative ones count from the end."""

    side: str
    spec: slice | tuple[int, ...]

    @classmethod
    def of(cls, side: str, spec: Any) -> Positions:
        """Return checked positions; `side` is "queries" or "keys"."""
        if isinstance(spec, slice):
            ends = (spec.start, spec.stop, spec.step)
            if all(end is None or is_integer(end) for end in ends) and spec.step != 0:
                return cls(side, spec)
        numbers = [spec] if is_integer(spec) else spec
        is_list = isinstance(numbers, Iterable) and not isinstance(numbers, str)
        numbers = list(numbers) if is_list else []
        if not numbers or not all(map(is_integer, numbers)):
            raise ArgumentError(
                f"{side}={reprlib.repr(spec)}",
                expected=f"positions: {side}=3, {side}=[0, 4] or {side}=slice(2, 5)",
            )
        return cls(side, tuple(map(int, numbers)))

    @property
    def text(self) -> str:
        """The positions as text.

        >>> Positions.of("keys", slice(2, None)).text, Positions.of("keys", [0, 4]).text
        ('2:', '0, 4')
        """
        if isinstance(self.spec, tuple):
            return reprlib.repr(list(self.spec)).strip("[]")
        parts = [self.spec.start, self.spec.stop]
        parts += [] if self.spec.step is None else [self.spec.step]
        return ":".join("" if part is None else str(part) for part in parts)

    def within(self, first: int, count: int) -> Tensor:
        """Return the sorted indices of these positions among `count` tokens from `first` on.

        >>> Positions.of("keys", [0, 4, -1]).within(4, 3)
        tensor([0, 2])
        """
        total, spec = first + count, self.spec
        if isinstance(spec, slice):
            numbers = [*range(total)[spec]]
        else:
            numbers = [number + total * (number < 0) for number in spec]
        local = sorted({number - first for number in numbers if first <= number < total})
        return torch.tensor(local, dtype=torch.long, device="cpu")

    def check(self, total: int) -> None:
        """Raise `ArgumentError` for a position that a text of `total` tokens does not have."""
        numbers = () if isinstance(self.spec, slice) else self.spec
        outside = [number for number in numbers if not -total <= number < total]
        if outside or not len(self.within(0, total)):
            what = f"position {outside[0]}" if outside else f"positions {self.text}"
            raise ArgumentError(
                f"{what} of the {self.side}, which no pass had",
                expected=f"positions from 0 to {total - 1}",
            )
