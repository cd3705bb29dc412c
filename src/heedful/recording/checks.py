"""Checks the arguments that a recording is asked with, before anything is computed."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops.indexing import ALL


def nothing_recorded() -> RunError:
    """What is said where a recording has no call to look at."""
    return RunError(
        "nothing was recorded",
        expected="a pass inside the `with` block, with attention that a door sees",
        cause="no call, one in another thread, or calls of other texts alone, which are in "
        "recording.sequences",
        remedy="see recording.missed, which says what was not understood",
    )


def is_whole(number: Any) -> TypeGuard[int]:
    """Whether it is one whole number, of Python, NumPy or torch; True and False do not count."""
    if isinstance(number, Tensor):
        is_integer = number.dtype != torch.bool and torch.can_cast(number.dtype, torch.long)
        return number.ndim == 0 and is_integer
    return isinstance(number, Integral) and not isinstance(number, bool)


def whole(what: str, number: Any, least: int | None = None) -> int:
    """The number as an int; an ArgumentError where it is none, or less than `least`."""
    if not is_whole(number) or (least is not None and number < least):
        raise ArgumentError(
            f"{what}={reprlib.repr(number)}",
            expected="a whole number" + ("" if least is None else f" of {least} or more"),
        )
    return int(number)


def region(what: str, part: Any) -> slice:
    """A region as a slice, of which None is all; an ArgumentError where it is none of numbers."""
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
    """The text of each token of each sequence; an ArgumentError where there are no such lists."""
    if tokens is None:
        return None
    rows = list(tokens) if isinstance(tokens, Iterable) else [tokens]
    are_lists = all(isinstance(row, Iterable) and not isinstance(row, str) for row in rows)
    texts = [list(row) for row in rows if are_lists]
    if not are_lists or not all(isinstance(text, str) for row in texts for text in row):
        raise ArgumentError(
            f"tokens={reprlib.repr(tokens)}",
            expected="a list of strings for each sequence, in a list",
            remedy="one sequence is [['the', 'cat']]",
        )
    return texts


def path_of(path: Any) -> Path:
    """The path to a file as a `Path`; an ArgumentError where it is neither that nor a string."""
    if isinstance(path, str | PathLike):
        return Path(path)
    what = f"a file of type {type(path).__name__}"
    raise ArgumentError(what, expected="its path, a string or a Path")
