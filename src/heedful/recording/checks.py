"""Checks of the arguments of a recording's methods, which raise before anything is computed."""

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
    """Return the error for a recording without a call."""
    return RunError(
        "nothing was recorded",
        expected="a forward pass inside the `with` block, with attention that a door intercepts",
        cause="no pass, a pass in another thread, or only calls of other texts, which are in "
        "recording.sequences",
        remedy="read recording.missed, which lists the attention that was not recorded",
    )


def is_integer(number: Any) -> TypeGuard[int]:
    """Return whether a value is a single integer of Python, NumPy or torch, and not a boolean."""
    if isinstance(number, Tensor):
        has_integer_type = number.dtype != torch.bool and torch.can_cast(number.dtype, torch.long)
        return number.ndim == 0 and has_integer_type
    return isinstance(number, Integral) and not isinstance(number, bool)


def integer(name: str, number: Any, minimum: int | None = None) -> int:
    """Return the number as an int; raise an ArgumentError if it is not an integer, or too small."""
    if not is_integer(number) or (minimum is not None and number < minimum):
        raise ArgumentError(
            f"{name}={reprlib.repr(number)}",
            expected="a whole number" + ("" if minimum is None else f" of {minimum} or more"),
        )
    return int(number)


def region(name: str, part: Any) -> slice:
    """Return a slice unchanged, and for None a slice of all; else raise an ArgumentError."""
    if part is None:
        return ALL
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else ("none",)
    if not all(end is None or is_integer(end) for end in ends):
        raise ArgumentError(
            f"{name}={reprlib.repr(part)}",
            expected="a slice, such as slice(0, 100)",
            remedy="weights(queries=…, keys=…) takes any indices",
        )
    return part


def texts_of(tokens: Any) -> list[list[str]] | None:
    """Return the strings of the tokens, a list per text; raise an ArgumentError for other forms."""
    if tokens is None:
        return None
    rows = list(tokens) if isinstance(tokens, Iterable) else [tokens]
    are_lists = all(isinstance(row, Iterable) and not isinstance(row, str) for row in rows)
    texts = [list(row) for row in rows if are_lists]
    if not are_lists or not all(isinstance(text, str) for row in texts for text in row):
        raise ArgumentError(
            f"tokens={reprlib.repr(tokens)}",
            expected="a list of strings for each sequence, in a list",
            remedy="for a batch of one sequence, pass [['the', 'cat']]",
        )
    return texts


def path_of(path: Any) -> Path:
    """Return a path as a `Path`; raise an ArgumentError if it is not a string or a path."""
    if isinstance(path, str | PathLike):
        return Path(path)
    kind = type(path).__name__
    raise ArgumentError(f"a file of type {kind}", expected="its path, a string or a Path")
