"""Parses `record(axes=)`: the axes of a module's queries in the notation of einops.

In `record(model, axes={"encoder.*.attn": "(h b) n d"})`, b stands for texts, h for heads, g for
groups of heads that share a key, n for queries, d for the width. Any other letter stands for parts
of a text, such as windows.
Source: Rogozhnikov 2022, *Einops* (ICLR).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import nn

from heedful.configuration import nearest
from heedful.errors import ArgumentError
from heedful.recorder.axes.usual_order import HEADS, PARTS, TEXTS, Joined, Order
from heedful.recorder.doors.tape_cells import BATCH, KEYS, QUERIES, Cells
from heedful.recording.module_names import plain_name

Letters: TypeAlias = list[list[str]]  # the letters of each axis, outermost first
ROLES = {"b": TEXTS, "h": HEADS, "g": HEADS, "n": QUERIES}  # any other letter: PARTS


def check_axes(axes: Any, model: nn.Module) -> dict[str, str]:
    """Return the checked axes by pattern of module names; raise `ArgumentError` if invalid."""
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        raise ArgumentError(
            f"axes of type {type(axes).__name__}",
            expected='names of modules and the axes of their queries: {"*.attn": "b h n d"}',
        )
    patterns = {str(name): str(pattern) for name, pattern in axes.items()}
    for pattern in patterns.values():
        letters_of(pattern)
    modules = model.named_modules(remove_duplicate=False) if patterns else ()
    names = [*filter(None, (plain_name(name) for name, _ in modules))]
    names.append(type(getattr(model, "_orig_mod", model)).__name__)
    for name in patterns:
        if not any(fnmatchcase(other, name) for other in names):
            raise ArgumentError(
                f"axes for {name!r}, which is not the name of a module",
                expected=f"a name such as {nearest(name, names[:40])}, with * for any characters",
            )
    return patterns


def pattern_for(axes: Mapping[str, str], name: str) -> str:
    """Return the axes for the first name pattern that matches the module; "" if no pattern does."""
    return next((axis for pattern, axis in axes.items() if fnmatchcase(name, pattern)), "")


@functools.lru_cache(maxsize=64)
def letters_of(pattern: str) -> Letters:
    """Split "(b h) n d" into [["b", "h"], ["n"], ["d"]]; raise `ArgumentError` if invalid."""
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
    return axes


def order_from_pattern(pattern: str, cells: Cells, texts: int | None) -> Order:
    """Return the roles of the axes of a map by a pattern such as "(h b) n d".

    The axis with n is the axis of queries. The other letters name the axes of the batch, in order.
    Raise `ArgumentError` if the number of axes or a size does not fit. `texts`: None if unknown.
    """
    rest = [letters for letters in letters_of(pattern) if letters != ["d"]]
    free = [axis for axis in range(len(cells.shape)) if axis != cells.along_keys]
    query_axes = [axis for axis in free if cells.kinds[axis] == QUERIES]
    batch_axes = [axis for axis in free if cells.kinds[axis] == BATCH]
    query_letters = next(letters for letters in rest if "n" in letters)
    letters = {}
    if len(query_axes) == 1 and len(batch_axes) == len(rest) - 1:
        letters[query_axes[0]] = query_letters
        others = [axis for axis in rest if axis is not query_letters]
        letters |= dict(zip(batch_axes, others, strict=True))
    elif len(free) == len(rest):  # axes of size 1, or along which only the queries change
        letters = dict(zip(free, rest, strict=True))
    else:
        raise ArgumentError(
            f"axes {pattern!r} for scores {cells.shape}",
            expected="one axis, besides d, for each axis of the scores except that of the keys",
        )
    axes: list[Joined] = [[(size, KEYS if axis == cells.along_keys else QUERIES)]
                          for axis, size in enumerate(cells.shape)]  # fmt: skip
    for axis, joined in letters.items():
        axes[axis] = _joined(pattern, joined, cells.shape[axis], texts)
    return Order(axes)


def _joined(pattern: str, letters: list[str], size: int, texts: int | None) -> Joined:
    """Split an axis by its letters; raise `ArgumentError` unless one letter has an unknown size."""
    roles = [ROLES.get(letter, PARTS) for letter in letters]
    if len(letters) == 1:
        return [(size, roles[0])]
    sizes = {"b": texts} if texts and "b" in letters else {}
    unknown = [letter for letter in letters if letter not in sizes]
    divisor = sizes.get("b") or 1
    if len(unknown) != 1 or size % divisor:
        raise ArgumentError(
            f"axes {pattern!r} for an axis of size {size} and {texts or 'unknown'} texts",
            expected="at most one letter of unknown size on each axis",
            remedy="split the axis in the model, or record one text at a time",
        )
    sizes[unknown[0]] = size // divisor
    return [(sizes[letter], role) for letter, role in zip(letters, roles, strict=True)]
