"""What is asked of `record`, and of a recording: checked before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.tables import ALL
from heedful.recorder.told_axes import Told, parsed

KEPT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Options(NamedTuple):
    """The arguments of `record`, as lists and whole numbers; None is all, or no limit."""

    axes: Mapping[str, Told] = {}
    layers: list[int] | None = None
    heads: list[int] | None = None
    values: bool = False
    dtype: torch.dtype | None = None
    every: int = 1
    budget: int | None = None

    @classmethod
    def of(
        cls,
        axes: Any = None,
        layers: Collection[int] | None = None,
        heads: Collection[int] | None = None,
        values: bool = False,
        dtype: torch.dtype | None = None,
        every: int = 1,
        budget: int | None = None,
    ) -> Options:
        """From what was asked for.

        Raises:
            ArgumentError: what names no layer, head, type, number of passes or of bytes.
        """
        if dtype is not None and dtype not in KEPT:
            raise ArgumentError(
                f"dtype={dtype!r}", expected="torch.float16, bfloat16, float32 or float64, or None"
            )
        return cls(
            parsed(axes),
            _numbers("layers", layers),
            _numbers("heads", heads),
            values,
            dtype,
            whole("every", every, least=1),
            _bytes(budget),
        )

    def check_layers(self, seen: Mapping[str, int | None]) -> None:
        """Once the model has run: that every layer that was asked for is there.

        Args:
            seen: names of the modules that were, with their layers; none where no model ran.

        Raises:
            ArgumentError: a layer that was not.
        """
        missing = [layer for layer in self.layers or () if layer not in seen.values()]
        if not seen or not missing:
            return
        numbers = sorted({layer for layer in seen.values() if layer is not None})
        named = ", ".join(list(seen)[:3])
        raise ArgumentError(
            f"layers={self.layers}, and no layer {missing[0]} was seen",
            expected=f"numbers from {numbers[0]} to {numbers[-1]}, as in the names of this model"
            if numbers
            else f"no layers: the names of what attends here have no number, such as {named}",
        )


def _numbers(name: str, asked: Any) -> list[int] | None:
    """Each once, in the order that was asked for."""
    if asked is None:
        return None
    came = f"{name}={reprlib.repr(asked)}"
    if not isinstance(asked, Iterable) or (isinstance(asked, Tensor) and asked.ndim != 1):
        raise ArgumentError(came, expected=f"a list of numbers, such as {name}=[0]")
    found = list(asked)
    if not all(is_whole(number) and number >= 0 for number in found):
        raise ArgumentError(came, expected="whole numbers from 0, none counted from the end")
    if not found or len({int(number) for number in found}) < len(found):
        raise ArgumentError(
            came, expected="at least one, and each once", remedy=f"leave {name} out for all"
        )
    return [int(number) for number in found]


def _bytes(budget: Any) -> int | None:
    if budget is None:
        return None
    number = int(budget) if isinstance(budget, float) and budget.is_integer() else budget
    if not is_whole(number) or number < 0:
        raise ArgumentError(
            f"budget={budget!r}", expected="bytes, a whole number such as 2e9, which is 2 GB"
        )
    return int(number)


def is_whole(number: Any) -> TypeGuard[int]:
    """Whether it is one whole number, of Python, NumPy or torch; True and False are none here."""
    if isinstance(number, Tensor):
        is_integer = number.dtype != torch.bool and torch.can_cast(number.dtype, torch.long)
        return number.ndim == 0 and is_integer
    return isinstance(number, Integral) and not isinstance(number, bool)


def whole(what: str, number: Any, least: int | None = None) -> int:
    """A whole number.

    Raises:
        ArgumentError: anything else, or less than `least`.
    """
    if not is_whole(number) or (least is not None and number < least):
        raise ArgumentError(
            f"{what}={reprlib.repr(number)}",
            expected="a whole number" + ("" if least is None else f" of {least} or more"),
        )
    return int(number)


def region(what: str, part: Any) -> slice:
    """A slice of whole numbers; None is all.

    Raises:
        ArgumentError: anything else.
    """
    if part is None:
        return ALL
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else ("none",)
    if not all(end is None or is_whole(end) for end in ends):
        raise ArgumentError(
            f"{what}={reprlib.repr(part)}",
            expected="a slice, such as slice(0, 100)",
            remedy="weights(queries=…, keys=…) takes any indices",
        )
    return part


def texts_of(tokens: Any) -> list[list[str]] | None:
    """The text of each token of each sequence.

    Raises:
        ArgumentError: anything but lists of strings in a list, or None.
    """
    if tokens is None:
        return None
    rows = list(tokens) if isinstance(tokens, Iterable) else [tokens]
    wrong = [row for row in rows if isinstance(row, str) or not isinstance(row, Iterable)]
    found = [list(row) for row in rows if not wrong]
    if wrong or not all(isinstance(text, str) for row in found for text in row):
        raise ArgumentError(
            f"tokens={reprlib.repr(tokens)}",
            expected="a list of strings for each sequence, in a list",
            remedy="one sequence is [['the', 'cat']]",
        )
    return found


def path_of(path: Any) -> Path:
    """A path to a file.

    Raises:
        ArgumentError: anything but a string or a path.
    """
    if not isinstance(path, str | PathLike):
        raise ArgumentError(
            f"a file of type {type(path).__name__}", expected="its path, a string or a Path"
        )
    return Path(path)
