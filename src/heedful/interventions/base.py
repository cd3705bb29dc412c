"""`Change`, one change of the output of heads; and the positions of tokens that it affects."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.interventions.head_call import HeadCall
from heedful.recording.checks import is_integer

Heads: TypeAlias = int | Iterable[int] | None
Positions: TypeAlias = int | slice | Iterable[int]
CheckedPositions: TypeAlias = slice | tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Change:
    """A change of the output of some heads; the functions of `heedful.change` return one.

    name, heads: its name, and the numbers of the heads; None: all.
    define: the new output (B, h, n, v) of some queries of a call with only these heads, by the
        definition; also of a call in float64. None: there is only `compute`.
    compute: the same for all queries, faster; None: `define`.
    edges: the positions of the queries and of the keys that are hidden from them, in which case
        only rows with a hidden pair change.
    accepts_dropout: whether the change is defined while weights are dropped at random.
    """

    name: str
    heads: tuple[int, ...] | None
    define: Callable[[HeadCall, Tensor], Tensor] | None
    compute: Callable[[HeadCall], Tensor] | None = None
    edges: tuple[CheckedPositions, CheckedPositions] | None = None
    accepts_dropout: bool = False

    def __repr__(self) -> str:
        return f"<Change {self.text}>"

    @property
    def text(self) -> str:
        """The name and the heads, in words."""
        if self.heads is None:
            return f"{self.name}, all heads"
        s = "" if len(self.heads) == 1 else "s"
        return f"{self.name}, head{s} {', '.join(map(str, self.heads))}"


def heads_of(heads: Any) -> tuple[int, ...] | None:
    """Return numbers of heads as a tuple; None stands for all heads."""
    numbers = _integers(heads)
    if heads is None or (numbers and min(numbers) >= 0 and len({*numbers}) == len(numbers)):
        return numbers or None
    expected = "numbers of heads from 0, each once, such as heads=[1, 3]"
    raise ArgumentError(f"heads={reprlib.repr(heads)}", expected=expected)


def positions_of(side: str, positions: Any) -> CheckedPositions:
    """Return checked positions: a slice, or whole numbers as a tuple."""
    if isinstance(positions, slice):
        ends = (positions.start, positions.stop, positions.step)
        if positions.step != 0 and all(end is None or is_integer(end) for end in ends):
            return positions
    elif numbers := _integers(positions):
        return numbers
    raise ArgumentError(
        f"{side}={reprlib.repr(positions)}",
        expected=f"positions: {side}=3, {side}=[0, 4], {side}=slice(2, 5) or a name of `segments`",
    )


def within(positions: CheckedPositions, first: int, count: int) -> Tensor:
    """Return the sorted indices of positions among `count` tokens from `first` on.

    >>> within((0, 4, -1), first=4, count=3)
    tensor([0, 2])
    """
    total = first + count
    if isinstance(positions, slice):
        numbers = list(range(total)[positions])
    else:
        numbers = [number + total * (number < 0) for number in positions]
    local = sorted({n - first for n in numbers if first <= n < total})
    return torch.tensor(local, dtype=torch.long, device="cpu")


def check_positions(side: str, positions: CheckedPositions, total: int) -> None:
    """Raise `ArgumentError` for positions that a text of `total` tokens does not have."""
    for part in [positions] if isinstance(positions, slice) else [(n,) for n in positions]:
        if not len(within(part, 0, total)):
            raise ArgumentError(
                f"{side} {words(part)}, which no pass had", expected=f"positions below {total}"
            )


def words(positions: CheckedPositions) -> str:
    """Return positions as text, such as "2:" and "0, 4"."""
    if isinstance(positions, slice):
        step = "" if positions.step is None else f":{positions.step}"
        return f"{positions.start}:{positions.stop}{step}".replace("None", "")
    return reprlib.repr(list(positions)).strip("[]")


def _integers(numbers: Any) -> tuple[int, ...]:
    """Return whole numbers as a tuple; an empty tuple if they are anything else."""
    numbers = [numbers] if is_integer(numbers) else numbers
    is_list = isinstance(numbers, Iterable) and not isinstance(numbers, str)
    items = list(numbers) if is_list else []
    return tuple(map(int, items)) if all(map(is_integer, items)) else ()
