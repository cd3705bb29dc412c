"""Names the axes of a map by the order in which models usually have them.

Texts come first, then parts of a text such as windows, then heads, queries and keys. Texts and
heads may share one axis, texts before heads. What fits no rule is refused; `axes=` names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.recorder.doors.cells import BATCH, KEYS, QUERIES, Cells

TEXTS, PARTS, HEADS = "texts", "parts", "heads"
# The axes that one axis of a map joins, the outer first: the size of each, and what it is of
Joined: TypeAlias = list[tuple[int, str]]


class Order(NamedTuple):
    """What the axes of a map are of.

    axes: for each axis those that it joins.
    other: what else they could be, in one sentence; empty where no other choice was likely.
    """

    axes: list[Joined]
    other: str = ""

    def arranged(self, table: Tensor) -> Tensor:
        """A table as (texts × parts, heads, queries, keys).

        Args:
            table: with the axes of the map, or size 1 along some of them.
        """
        sizes, roles = [], []
        for axis, joined in enumerate(self.axes):
            sizes += [size if table.shape[axis] > 1 else 1 for size, _ in joined]
            roles += [role for _, role in joined]
        groups = [
            [at for wanted in together for at, role in enumerate(roles) if role == wanted]
            for together in ((TEXTS, PARTS), (HEADS,), (QUERIES,), (KEYS,))
        ]
        table = table.reshape(sizes).permute([at for group in groups for at in group])
        return table.reshape([math.prod([sizes[at] for at in group]) for group in groups])

    def count(self, wanted: str) -> int:
        """How many texts, parts, heads, queries or keys there are."""
        return math.prod([size for joined in self.axes for size, role in joined if role == wanted])


def usual_order(cells: Cells, texts: int, widths: Collection[int]) -> Order:
    """The axes in their usual order.

    Args:
        cells: the map.
        texts: how many texts the model was given.
        widths: sizes of the module's parameters, which heads and their width must fit; empty where
            it has none.

    Raises:
        ArgumentError: no usual order fits.
    """
    axes: list[Joined] = []
    queries = _axis_of_queries(cells)
    packed = 1  # heads that are packed with the queries
    for axis, (size, kind) in enumerate(zip(cells.shape, cells.kinds, strict=True)):
        is_packed = kind == QUERIES and axis != queries
        packed *= size if is_packed else 1
        axes.append([(size, HEADS if is_packed else KEYS if kind == KEYS else QUERIES)])

    def fits(heads: int) -> bool:
        return not widths or _is_width(heads * packed * cells.query.shape[-1], widths)

    beside = [axis for axis, kind in enumerate(cells.kinds) if kind == BATCH]
    named = _named([cells.shape[axis] for axis in beside], texts, fits)
    for axis, joined in zip(beside, named, strict=True):
        axes[axis] = joined
    order = Order(axes)
    N, M = order.count(QUERIES), order.count(KEYS)
    if N > M > 1 and N % M == 0:  # as models with one key head have it
        return order._replace(other=f"the {N} queries may be {N // M} heads of {M} queries")
    return order


def _axis_of_queries(cells: Cells) -> int | None:
    """The axis of the queries; of several the one that is as long as that of the keys."""
    axes = [axis for axis, kind in enumerate(cells.kinds) if kind == QUERIES]
    if len(axes) < 2:
        return axes[0] if axes else None
    alike = [axis for axis in axes if cells.shape[axis] == cells.shape[cells.along_keys]]
    if len(alike) != 1:
        raise ArgumentError(
            f"queries along {len(axes)} axes of the scores {cells.shape}",
            expected="one axis of queries",
            remedy="name the axes of the queries with axes=",
        )
    return alike[0]


def _named(sizes: list[int], texts: int, fits: Callable[[int], bool]) -> list[Joined]:
    """What the axes beside queries and keys are of: the first rule that fits."""
    match sizes:
        case []:
            return []
        case [size] if texts == 1 and fits(size):
            return [[(size, HEADS)]]
        case [size] if texts == 1 and fits(1):
            return [[(size, PARTS)]]
        case [size] if size == texts and fits(1):
            return [[(size, TEXTS)]]
        case [size] if size % texts == 0 and fits(size // texts):
            return [[(texts, TEXTS), (size // texts, HEADS)]]
        case [size] if size % texts == 0 and fits(1):
            return [[(texts, TEXTS), (size // texts, PARTS)]]
        case [size, heads] if size % texts == 0 and fits(heads):
            return [[(texts, TEXTS), (size // texts, PARTS)], [(heads, HEADS)]]
        case [size, parts, heads] if size == texts and fits(heads):
            return [[(size, TEXTS)], [(parts, PARTS)], [(heads, HEADS)]]
    raise ArgumentError(
        f"axes {sizes} beside queries and keys, of {texts} texts",
        expected="texts before heads, and heads that fit the widths of the module",
        remedy="name the axes of the queries with axes=, or call recording.verify",
    )


def _is_width(width: int, widths: Collection[int]) -> bool:
    """Whether a width is that of a projection, or of one to queries, keys and values together."""
    return any(size % width == 0 and size // width in (1, 2, 3) for size in widths)
