"""Names the axes of a map by the order in which models usually have them: one table of rules.

Texts come first, then parts of a text such as windows, heads, queries and keys; texts and heads
may share one axis. What fits no rule is refused: `axes=` or `recording.verify` names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.recorder.doors.tape_cells import BATCH, KEYS, QUERIES, Cells
from heedful.recording.proof import Layout

TEXTS, PARTS, HEADS = "texts", "parts", "heads"
WEIGHTS = ("weight", "original", "original1")  # of a layer, and of what parametrizes it
# The axes that one axis of a map joins, the outer first: the size of each, and what it is of
Joined: TypeAlias = list[tuple[int, str]]
BLOCK = "its one key may be a block of several, each with a softmax of its own"
REMEDY = "name the axes of the queries with axes=, or call recording.verify"


class Order(NamedTuple):
    """What each axis of a map is of: the axes that it joins."""

    axes: list[Joined]

    def arranged(self, table: Tensor) -> Tensor:
        """A table with the axes of the map, or 1 along some, as (texts × parts, heads, N, M)."""
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

    @property
    def is_in_order(self) -> bool:
        """Whether texts, parts, heads, queries and keys follow each other in this order."""
        roles = [role for joined in self.axes for size, role in joined if size > 1]
        return roles == sorted(roles, key=(TEXTS, PARTS, HEADS, QUERIES, KEYS).index)

    def count(self, wanted: str) -> int:
        """How many texts, parts, heads, queries or keys there are."""
        return math.prod([size for joined in self.axes for size, role in joined if role == wanted])


class Sizes(NamedTuple):
    """What a module and its inputs say of the sizes of axes.

    texts: the number of texts of the pass; None if unknown.
    other_texts: another number that is possible, or None.
    widths: of the module's projections, which heads times their width must fit; empty without any.
    lengths: sizes of the axes of the module's inputs, but for the last.
    """

    texts: int | None
    other_texts: int | None
    widths: Collection[int]
    lengths: Collection[int]


def widths_of(module: nn.Module) -> set[int]:
    """The widths that linear layers, convolutions and other tables in a module take and give."""
    found = set()
    for part in module.modules():
        # not as attributes, which a parametrization computes anew, and may write into buffers
        tables = *part.named_parameters(recurse=False), *part.named_buffers(recurse=False)
        weights = [table for name, table in tables if name in WEIGHTS]
        if not isinstance(part, nn.Embedding):
            found |= {size for weight in weights if weight.ndim > 1 for size in weight.shape[:2]}
    for parameter in module.parameters(recurse=False):
        if parameter.ndim in (2, 3):  # a projection, of one head or of several
            found |= {max(parameter.shape[-2:]), parameter.shape[0] * parameter.shape[-1]}
    return found


def usual_order(cells: Cells, of: Sizes) -> tuple[Order, Layout]:
    """The axes in their usual order, and whether another was possible; `ArgumentError` for none."""
    axes: list[Joined] = []
    queries = _axis_of_queries(cells)
    packed = 1  # heads that are packed with the queries
    for axis, (size, kind) in enumerate(zip(cells.shape, cells.kinds, strict=True)):
        is_packed = kind == QUERIES and axis != queries
        packed *= size if is_packed else 1
        axes.append([(size, HEADS if is_packed else KEYS if kind == KEYS else QUERIES)])
    width = cells.query.shape[-1] * packed

    beside = [axis for axis, kind in enumerate(cells.kinds) if kind == BATCH]
    named, doubt = _fitting([cells.shape[axis] for axis in beside], width, of)
    for axis, joined in zip(beside, named, strict=True):
        axes[axis] = joined
    order = Order(axes)
    is_joined = any(len(joined) > 2 for joined in axes)
    other = doubt or ("texts × parts × heads are in one axis" if is_joined else _other(order, of))
    return order, Layout("guessed", other) if other else Layout("usual")


def _fitting(sizes: list[int], width: int, of: Sizes) -> tuple[list[Joined], str]:
    """What the axes beside queries and keys are of, and a doubt about it: keys of two projections,
    of tokens and of their positions, are twice as wide."""

    def fits(heads: int, times: int = 1) -> bool:
        return not of.widths or width == 1 or heads * width / times in of.widths

    try:
        named = _named(sizes, of.texts, fits)
        heads = math.prod(size for joined in named for size, role in joined if role == HEADS)
        is_one_of_several = heads == 1 and not fits(1)
        return named, "one head alone is narrower than the module" if is_one_of_several else ""
    except ArgumentError:
        named = _named(sizes, of.texts, lambda heads: fits(heads, 2))
        return named, "its heads together are twice as wide as the module"


def _other(order: Order, of: Sizes) -> str:
    """What else the axes could be; "" where no other choice was likely."""
    N, M, texts = order.count(QUERIES), order.count(KEYS), order.count(TEXTS)
    if of.texts is None:
        return "no input tells how many texts there are"
    if of.other_texts is not None and order.count(TEXTS) * order.count(PARTS) % of.other_texts == 0:
        return f"there may be {of.other_texts} texts and not {texts}, by the sizes of the inputs"
    if N > M > 1 and N % M == 0 and N not in of.lengths:  # as models with one key head have it
        return f"the {N} queries may be {N // M} heads of {M} queries"
    if M == 1 < N:
        return BLOCK
    if of.lengths and order.count(PARTS) == 1:
        for size, name in ((N, "queries"), (M, "keys")):
            if not _is_length(size, N, of.lengths):
                return f"the module was given nothing with {size} rows, as many as there are {name}"
    return ""


def _is_length(size: int, queries: int, lengths: Collection[int]) -> bool:
    """Whether a size is that of an input, with a few tokens more, or with those of a cache."""
    several = {*lengths}
    products = {a * b for a in several for b in several}
    near = {size, size - 1, size - 2, size - queries}
    return size == 1 or bool(near & several) or size in products


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
            remedy=REMEDY,
        )
    return alike[0]


def _named(sizes: list[int], texts: int | None, fits: Callable[[int], bool]) -> list[Joined]:
    """What the axes beside queries and keys are of: the first rule that fits."""
    count = texts or (sizes[0] if len(sizes) > 1 else 1)
    match sizes:
        case []:
            return []
        case [size] if count == 1 and fits(size):
            return [[(size, HEADS)]]
        case [size] if count == 1 and fits(1):
            return [[(size, PARTS)]]
        case [size] if size % count == 0 and fits(size // count):
            return [[(count, TEXTS), (size // count, HEADS)]]
        case [size] if size % count == 0 and fits(1):
            return [[(count, TEXTS), (size // count, PARTS)]]
        case [size, heads] if size % count == 0 and fits(heads):
            return [[(count, TEXTS), (size // count, PARTS)], [(heads, HEADS)]]
        case [size, parts, heads] if size == count and fits(heads):
            return [[(size, TEXTS)], [(parts, PARTS)], [(heads, HEADS)]]
        case [size] if fits(size):  # of one text, as in a loop over them
            return [[(size, HEADS)]]
        case [size] if size == count:  # of one head, as in a loop over them
            return [[(size, TEXTS)]]
        case [size] if heads := _heads_of_parts(size, count, fits):
            return [[(count, TEXTS), (size // count // heads, PARTS), (heads, HEADS)]]
    raise ArgumentError(
        f"axes {sizes} beside queries and keys, of {texts or 'an unknown number of'} texts",
        expected="texts before heads, and heads that fit the widths of the module",
        remedy=REMEDY,
    )


def _heads_of_parts(size: int, texts: int, fits: Callable[[int], bool]) -> int:
    """The number of heads of an axis of texts × parts × heads; 0 where none fits."""
    fitting = (n for n in range(2, size // texts + 1) if size % (texts * n) == 0 and fits(n))
    return next(fitting, 0)
