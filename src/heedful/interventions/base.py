"""`Change`, the base class of all changes of heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.interventions.head_call import HeadCall, sampled_rows
from heedful.recording.checks import is_integer

Heads: TypeAlias = int | Iterable[int] | None


class Result(NamedTuple):
    """The new output of the changed heads, (B, h, n, v).

    rows: the indices of the n queries; None: all. lost: how many of them lost all their keys.
    """

    output: Tensor
    rows: Tensor | None = None
    lost: int = 0


class Change(ABC):
    """A change of the output of some heads; the functions of `heedful.change` return one.

    accepts_dropout: whether the change is defined while weights are dropped at random.
    """

    accepts_dropout = False

    def __init__(self, name: str, heads: Heads) -> None:
        self.name, self.heads = name, _numbers(heads)

    def __repr__(self) -> str:
        return f"<Change {self.text}>"

    @property
    def text(self) -> str:
        """The name and the heads, in words."""
        if self.heads is None:
            return f"{self.name}, all heads"
        numbers = ", ".join(map(str, self.heads))
        return f"{self.name}, head{'' if len(self.heads) == 1 else 's'} {numbers}"

    @abstractmethod
    def output(self, call: HeadCall) -> Result:
        """Compute the new output of a call that has only the changed heads."""

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor | None:
        """Return the new output in `rows` by the definition, of a call in float64; else None."""
        return None

    def sampled(self, call: HeadCall) -> Tensor:
        """Return the queries in which the new output is compared with the definition."""
        return sampled_rows(torch.arange(call.shape[2], device="cpu"))

    def check_positions(self, queries: int, keys: int) -> None:  # noqa: B027 - most have none
        """Raise `ArgumentError` if no pass had a position; the longest had these numbers."""


def _numbers(heads: Any) -> tuple[int, ...] | None:
    if heads is None:
        return None
    numbers = [heads] if is_integer(heads) else heads
    is_list = isinstance(numbers, Iterable) and not isinstance(numbers, str)
    numbers = list(numbers) if is_list else []
    are_valid = all(is_integer(number) and number >= 0 for number in numbers)
    if not numbers or not are_valid or len({*map(int, numbers)}) < len(numbers):
        raise ArgumentError(
            f"heads={heads!r}", expected="numbers of heads from 0, each once, such as heads=[1, 3]"
        )
    return tuple(map(int, numbers))
