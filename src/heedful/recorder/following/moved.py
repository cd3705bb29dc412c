"""Numbers that come to stand elsewhere, as where an image is padded, pooled or rolled.

The axes along which they do are new ones, and those of features stay known as such. One of an input
stays known as that one too, but not the order along it: `Axis.moved` names the operation. Along the
others, each number stands where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heedful.recorder.following.strides import Axes, Axis, Part, Parts, View

# Along as many of the last axes as the name says
SPATIAL = re.compile(
    r"(?:_?(?:adaptive_)?(?:avg|max)_pool|upsample_[a-z]+|[a-z]+_pad)([123])d(?:_with_indices)?"
)
# Along the axes that an argument names
NAMED = {
    "roll": "dims", "flip": "dims", "index_select": "dim", "gather": "dim", "sort": "dim",
    "scatter": "dim", "scatter_add": "dim", "scatter_reduce": "dim", "index_copy": "dim",
    "index_add": "dim", "index_reduce": "dim", "slice_scatter": "dim", "select_scatter": "dim",
}  # fmt: skip
# Along the axes that have an index
INDEXED = {"index", "index_put"}
# Along any axis
ANYWHERE = {"masked_scatter", "put"}


def moves(name: str) -> bool:
    """Whether an operation of this name puts numbers elsewhere."""
    is_named = name in ANYWHERE or name in INDEXED or name in NAMED or name == "constant_pad_nd"
    return is_named or SPATIAL.fullmatch(name) is not None


def dims_moved(name: str, given_by_name: dict[str, Any]) -> Sequence[int] | None:
    """The axes along which an operation does, counted from either end; None: any of them."""
    if spatial := SPATIAL.fullmatch(name):
        return range(-int(spatial[1]), 0)
    if name == "constant_pad_nd":  # before and after the last axis, then of the one before it
        return [-1 - side // 2 for side, wide in enumerate(given_by_name["pad"]) if wide]
    if name in INDEXED:
        return _dims_indexed(**given_by_name)
    dims = given_by_name.get(NAMED.get(name, ""))
    return [dims] if isinstance(dims, int) else dims or None


def _dims_indexed(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor | None = None, **_: Any
) -> list[int]:
    """The axes that an index goes along; none where the same numbers are put at all its places."""
    dims: list[int] = []
    at = 0
    for index in indices:
        wide = index.ndim if index is not None and not index.dtype.is_signed else 1  # a mask
        dims += range(at, at + wide) if index is not None else []
        at += wide
    # numbers of one axis are of features where there are two before it; those of more, or of a
    # table of two axes, may be another text, or its tokens
    most = min(2, self.ndim - 1, self.ndim - max(dims, default=0))
    is_same = values is not None and values.ndim < most
    return [] if is_same or (values is not None and values.numel() == 1) else dims


def moved(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The rule (`axis_rules.py`) for these operations."""
    axes, dims = views[0].axes(), told["moved"]
    # a number alone, or rows that several indices pick together
    if len(axes) != len(sizes) or (told["by"] == "index" and len(dims) != 1):
        return [None] * len(sizes)
    every = range(len(axes))
    along = every if dims is None else [every[dim] for dim in dims if axes]
    return [
        _new(parts, size, told["by"]) if dim in along or _repeats(parts) else parts
        for dim, (parts, size) in enumerate(zip(axes, sizes, strict=True))
    ]


def _repeats(parts: Parts | None) -> bool:
    """Whether an axis repeats the same numbers, which are others once each was moved for itself."""
    return any(part.axis.is_copy for part in parts or ())


def _new(parts: Parts | None, size: int, by: str) -> Parts:
    flags = {part.feature for part in parts or ()}
    flag = flags.pop() if len(flags) == 1 else None
    may_be_heads = any(part.feature or part.may_be_heads for part in parts or ())
    return put_elsewhere(parts or (), size, flag, by, flag is None and may_be_heads)


def put_elsewhere(
    parts: Parts, size: int, flag: bool | None, by: str, is_doubtful: bool = False
) -> Parts:
    """A new axis for one along which an operation, `by`, has put numbers elsewhere.

    It is still of the input of which all its parts were.
    """
    if size == 1:
        return ()
    places = {part.axis.given for part in parts}
    is_given = places != {None} and bool(places)
    place = places.pop() if len(places) == 1 else None
    # a part of an input's axis that keeps its size counts the same digits as before
    is_digit = place is not None and len(parts) == 1 and parts[0].size == size
    step, whole = (parts[0].step, parts[0].axis.size) if is_digit else (1, size)
    joined = any(part.axis.joined for part in parts)
    is_aside = any(part.axis.is_aside for part in parts)
    axis = Axis(whole, place, by if is_given else "", is_aside, joined, is_doubtful=is_doubtful)
    return (Part(axis, step, size, flag),)


def stands_alike(own: Parts | None, other: Parts | None) -> bool:
    """Whether numbers that are copied along an axis come to stand where they stood along theirs.

    So they do along the same axis of an input, or of another input along the same dimension, as
    inputs have their texts in one order; and where all are the same.
    """
    if other is None:
        return False
    if all(part.axis.is_copy for part in other):
        return True
    digits = [
        [(p.axis.size, p.step, p.size, _dim(p)) for p in parts] for parts in (own or (), other)
    ]
    return digits[0] == digits[1] and not any(part.axis.moved for part in other)


def _dim(part: Part) -> int | None:
    return None if part.axis.given is None else part.axis.given[1]
