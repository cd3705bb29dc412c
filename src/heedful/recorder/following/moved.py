"""Numbers that come to stand elsewhere, as where an image is padded, pooled or rolled.

The axes along which they do are new ones, and those of features stay known as such. Along the
others, each number stands where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from heedful.recorder.following.strides import Axes, Axis, Part, Parts, View

# Along as many of the last axes as the name says
SPATIAL = re.compile(
    r"(?:_?(?:adaptive_)?(?:avg|max)_pool|upsample_[a-z]+|[a-z]+_pad)([123])d(?:_with_indices)?"
)
# Along the axes that an argument names
NAMED = {"roll": "dims", "flip": "dims", "index_select": "dim"}
# Along any axis
ANYWHERE = {"gather", "scatter", "slice_scatter", "select_scatter", "sort", "index_put"}


def moves(name: str) -> bool:
    """Whether an operation of this name puts numbers elsewhere."""
    is_named = name in ANYWHERE or name in NAMED or name == "constant_pad_nd"
    return is_named or SPATIAL.fullmatch(name) is not None


def dims_moved(name: str, given_by_name: dict[str, Any]) -> Sequence[int] | None:
    """The axes along which an operation does, counted from either end; None: any of them."""
    if spatial := SPATIAL.fullmatch(name):
        return range(-int(spatial[1]), 0)
    if name == "constant_pad_nd":  # before and after the last axis, then of the one before it
        return [-1 - side // 2 for side, wide in enumerate(given_by_name["pad"]) if wide]
    dims = given_by_name.get(NAMED.get(name, ""))
    return [dims] if isinstance(dims, int) else dims or None


def moved(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The rule (`axis_rules.py`) for these operations."""
    axes = views[0].axes()
    if len(axes) != len(sizes):  # a number alone, read by an index
        return [_new(None, size) for size in sizes]
    every = range(len(axes))
    dims = every if told["moved"] is None else [every[dim] for dim in told["moved"] if axes]
    return [
        _new(parts, size) if dim in dims else parts
        for dim, (parts, size) in enumerate(zip(axes, sizes, strict=True))
    ]


def _new(parts: Parts | None, size: int) -> Parts:
    flags = {part.feature for part in parts or ()}
    flag = flags.pop() if len(flags) == 1 else None
    may_be_heads = any(part.feature or part.may_be_heads for part in parts or ())
    axis = Axis(size, is_doubtful=flag is None and may_be_heads)
    return (Part(axis, 1, size, flag),) if size > 1 else ()
