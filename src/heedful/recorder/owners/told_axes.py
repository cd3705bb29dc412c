"""Reads what a user tells of the axes of a module's queries, in the notation of einops.

`record(model, axes={"encoder.*.attn": "(h b) n d"})`: b texts, h heads, g groups of heads that
share a key, n queries, d the width; any other letter is a part of a text, such as a window.
Source: Rogozhnikov 2022, *Einops* (ICLR).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from heedful.configuration import nearest
from heedful.errors import ArgumentError
from heedful.recorder.doors.cells import BATCH, KEYS, QUERIES, Cells
from heedful.recorder.owners.usual_order import HEADS, PARTS, TEXTS, Joined, Order
from heedful.recording.module_names import plain_name

ROLES = {"b": TEXTS, "h": HEADS, "g": HEADS, "n": QUERIES}  # any other letter: PARTS


class TokenAxes(NamedTuple):
    """What is told of the axes of one module's queries.

    pattern: the notation as it was given, "(b h) n d".
    axes: the letters of each axis, outer ones first.
    """

    pattern: str
    axes: list[list[str]]


def parsed(axes: Any) -> dict[str, TokenAxes]:
    """What is told, by the pattern of the modules' names.

    Raises:
        ArgumentError: anything but such a mapping, or a notation without n and d.

    >>> parsed({"blocks.*": "(b h) n d"})["blocks.*"].axes
    [['b', 'h'], ['n'], ['d']]
    """
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        raise ArgumentError(
            f"axes of type {type(axes).__name__}",
            expected='names of modules and the axes of their queries, {"*.attn": "b h n d"}',
        )
    return {str(name): _parsed(str(pattern)) for name, pattern in axes.items()}


def check_names(axes: Mapping[str, TokenAxes], model: nn.Module) -> None:
    """Refuse a pattern that fits no module's name.

    Raises:
        ArgumentError: with the names that are nearest to it.
    """
    if not axes:  # to list the modules of a large model takes a while
        return
    plain = [plain_name(name) for name, _ in model.named_modules(remove_duplicate=False)]
    names = [*filter(None, plain), type(getattr(model, "_orig_mod", model)).__name__]
    for pattern in axes:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ArgumentError(
                f"axes for {pattern!r}, which no module is called",
                expected=f"a name such as {nearest(pattern, names[:40])}, with * for any part",
            )


def _parsed(pattern: str) -> TokenAxes:
    is_spaced = re.fullmatch(r"(\([a-z]( [a-z])*\)|[a-z])( (\([a-z]( [a-z])*\)|[a-z]))*", pattern)
    axes = [part.strip("()").split() for part in re.findall(r"\([a-z ]+\)|[a-z]", pattern)]
    letters = [letter for axis in axes for letter in axis]
    is_once = len(set(letters)) == len(letters)
    if not (is_spaced and is_once and ["d"] in axes and "n" in letters):
        raise ArgumentError(
            f"axes {pattern!r}",
            expected="each axis of the queries by its letter, each letter once, with n and d, "
            "such as 'b h n d' or '(h b) n d'",
        )
    return TokenAxes(pattern, axes)


@functools.lru_cache(maxsize=64)
def parsed_once(pattern: str) -> TokenAxes | None:
    """What a module tells of its axes; None of an empty pattern."""
    return _parsed(pattern) if pattern else None


def axes_told_for(axes: Mapping[str, TokenAxes], name: str) -> TokenAxes | None:
    """What is told of a module of this name, by the first pattern that fits it."""
    return next((told for pattern, told in axes.items() if fnmatchcase(name, pattern)), None)


def told_order(told: TokenAxes, cells: Cells, texts: int | None) -> Order:
    """The axes of a map, by what is told of those of its queries.

    The axis with n is that of the queries; the others, in their order, are those beside queries
    and keys.

    Raises:
        ArgumentError: the map has another number of axes, or sizes that do not fit.
    """
    rest = [letters for letters in told.axes if letters != ["d"]]
    of_queries = next(letters for letters in rest if "n" in letters)
    beside = [letters for letters in rest if letters is not of_queries]
    kinds = cells.kinds
    places = [axis for axis, kind in enumerate(kinds) if kind == BATCH]
    asking = [axis for axis, kind in enumerate(kinds) if kind == QUERIES]
    ones = [a for a, kind in enumerate(kinds) if kind not in (BATCH, QUERIES, KEYS)]
    if len(asking) > 1:  # several axes that keys do not have: heads that share a key, say
        return _in_order(told, cells, rest, texts)
    axes: list[Joined] = [[(size, QUERIES)] for size in cells.shape]
    axes[cells.along_keys] = [(cells.shape[cells.along_keys], KEYS)]
    if asking:
        axes[asking[0]] = _joined(told, of_queries, cells.shape[asking[0]], texts)
    missing = len(beside) - len(places)
    if missing < 0 or missing > len(ones) + (not asking):
        raise _misfit(told, cells)
    if missing:  # axes of one text, or of one head
        places = sorted([*places, *ones])[: len(beside)]
        if len(places) < len(beside):
            raise _misfit(told, cells)
    for letters, axis in zip(beside, places, strict=True):
        axes[axis] = _joined(told, letters, cells.shape[axis], texts)
    return Order(axes)


def _in_order(told: TokenAxes, cells: Cells, rest: list[list[str]], texts: int | None) -> Order:
    """The axes where several are of queries alone: they have the letters in their order."""
    others = [axis for axis in range(len(cells.shape)) if axis != cells.along_keys]
    if len(others) != len(rest):
        raise _misfit(told, cells)
    axes: list[Joined] = [[(size, KEYS)] for size in cells.shape]
    for letters, axis in zip(rest, others, strict=True):
        axes[axis] = _joined(told, letters, cells.shape[axis], texts)
    return Order(axes)


def _joined(told: TokenAxes, letters: list[str], size: int, texts: int | None) -> Joined:
    """The axes that one axis joins; a size that is not known follows from the others."""
    roles = [ROLES.get(letter, PARTS) for letter in letters]
    if len(letters) == 1:
        return [(size, roles[0])]
    known = {"b": texts} if texts and "b" in letters else {}
    unknown = [letter for letter in letters if letter not in known]
    done = known.get("b") or 1
    if len(unknown) != 1 or size % done:
        raise ArgumentError(
            f"axes {told.pattern!r} for an axis of {size}, of {texts or 'unknown'} texts",
            expected="sizes of all letters but one that are known",
            remedy="split the axis in the model, or record one text at a time",
        )
    sizes = {**known, unknown[0]: size // done}
    return [(sizes[letter], role) for letter, role in zip(letters, roles, strict=True)]


def _misfit(told: TokenAxes, cells: Cells) -> ArgumentError:
    return ArgumentError(
        f"axes {told.pattern!r} for scores {cells.shape}",
        expected="as many axes of queries as the scores have beside that of the keys",
    )
