"""Finds the roles of the axes of a map by their usual order: one table of rules, in `_named`.

Texts come first, then parts of a text (such as windows), heads, queries and keys. Texts and heads
may share one axis. If no rule fits, the user can pass `axes=` or call `recording.verify`.
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
WEIGHTS = ("weight", "original", "original1")  # the last two in a parametrized layer
# The factors of one axis of a map, outermost first: the size and the role (TEXTS, …) of each
Joined: TypeAlias = list[tuple[int, str]]
BLOCK = "its single key may be one of several blocks of keys, each with its own softmax"
REMEDY = "name the axes of the queries with axes=, or call recording.verify"


class Order(NamedTuple):
    """The roles of the axes of a map. One axis may join several roles, as (texts × heads)."""

    axes: list[Joined]

    def arrange(self, table: Tensor) -> Tensor:
        """Permute a table, broadcastable to the map, to (texts × parts, heads, queries, keys)."""
        sizes, roles = [], []
        for axis, joined in enumerate(self.axes):
            sizes += [size if table.shape[axis] > 1 else 1 for size, _ in joined]
            roles += [role for _, role in joined]
        groups = [
            [dim for role in group for dim, name in enumerate(roles) if name == role]
            for group in ((TEXTS, PARTS), (HEADS,), (QUERIES,), (KEYS,))
        ]
        table = table.reshape(sizes).permute([dim for dims in groups for dim in dims])
        return table.reshape([math.prod([sizes[dim] for dim in dims]) for dims in groups])

    @property
    def is_in_order(self) -> bool:
        """Whether the axes are texts, parts, heads, queries and keys in this order."""
        roles = [role for joined in self.axes for size, role in joined if size > 1]
        return roles == sorted(roles, key=(TEXTS, PARTS, HEADS, QUERIES, KEYS).index)

    def count(self, role: str) -> int:
        """Return the number of texts, parts, heads, queries or keys."""
        return math.prod([size for joined in self.axes for size, name in joined if name == role])


class Sizes(NamedTuple):
    """The sizes that a module and its inputs suggest for the axes of a map.

    texts: the number of texts of the pass; None if unknown.
    other_texts: another possible number of texts, or None.
    widths: the widths of the module's projections; one of them is heads × head width.
    lengths: the sizes of the axes of the module's inputs and buffers, without widths of inputs.
    """

    texts: int | None
    other_texts: int | None
    widths: Collection[int]
    lengths: Collection[int]


def widths_of(module: nn.Module) -> set[int]:
    """Return the input and output widths of all linear layers and other weights in a module."""
    widths = set()
    for part in module.modules():
        # not by attribute access, which may run a parametrization that writes into buffers
        tables = *part.named_parameters(recurse=False), *part.named_buffers(recurse=False)
        weights = [table for name, table in tables if name in WEIGHTS]
        if not isinstance(part, nn.Embedding):
            widths |= {size for weight in weights if weight.ndim > 1 for size in weight.shape[:2]}
    for parameter in module.parameters(recurse=False):
        if parameter.ndim in (2, 3):  # a projection to one head or several
            widths |= {max(parameter.shape[-2:]), parameter.shape[0] * parameter.shape[-1]}
    return widths


def usual_order(cells: Cells, sizes: Sizes) -> tuple[Order, Layout]:
    """Return the usual order and its layout; raise `ArgumentError` if no rule fits."""
    axes: list[Joined] = []
    queries = _axis_of_queries(cells)
    packed = 1  # number of heads on axes along which only the queries change
    for axis, (size, kind) in enumerate(zip(cells.shape, cells.kinds, strict=True)):
        is_packed = kind == QUERIES and axis != queries
        packed *= size if is_packed else 1
        axes.append([(size, HEADS if is_packed else KEYS if kind == KEYS else QUERIES)])
    width = cells.query.shape[-1] * packed

    batch_axes = [axis for axis, kind in enumerate(cells.kinds) if kind == BATCH]
    named, doubt = _fitting([cells.shape[axis] for axis in batch_axes], width, sizes)
    for axis, joined in zip(batch_axes, named, strict=True):
        axes[axis] = joined
    order = Order(axes)
    is_joined = any(len(joined) > 2 for joined in axes)
    other = "texts × parts × heads are in one axis" if is_joined else _doubt(order, sizes)
    doubt = doubt or other
    return order, Layout("guessed", doubt) if doubt else Layout("usual")


def _fitting(axes: list[int], width: int, sizes: Sizes) -> tuple[list[Joined], str]:
    """Return the roles of the batch axes, with heads that fit `sizes`, and a reason to doubt."""

    def fits(heads: int, times: int = 1) -> bool:
        return not sizes.widths or width == 1 or heads * width / times in sizes.widths

    try:
        named = _named(axes, sizes.texts, fits)
        heads = math.prod(size for joined in named for size, role in joined if role == HEADS)
        is_one_of_several = heads == 1 and not fits(1)
        return named, "one head alone is narrower than the module" if is_one_of_several else ""
    except ArgumentError:  # keys may join two projections, of tokens and of positions
        named = _named(axes, sizes.texts, lambda heads: fits(heads, 2))
        return named, "its heads together are twice as wide as the module"


def _doubt(order: Order, sizes: Sizes) -> str:
    """Return a reason why the axes may have other roles; "" if there is none."""
    N, M, texts = order.count(QUERIES), order.count(KEYS), order.count(TEXTS)
    other, lengths = sizes.other_texts, sizes.lengths
    if sizes.texts is None:
        return "the number of texts is unknown"
    if other is not None and texts * order.count(PARTS) % other == 0:
        return f"there may be {other} texts and not {texts}, by the sizes of the inputs"
    if N > M > 1 and N % M == 0 and N not in lengths:  # as in models with one key head
        return f"the {N} queries may be {N // M} heads of {M} queries"
    if M == 1 < N:
        return BLOCK
    if lengths and order.count(PARTS) == 1:
        for size, name in ((N, "queries"), (M, "keys")):
            if not _is_length(size, N, lengths):
                return f"no input of the module has {size} rows, the number of {name}"
    return ""


def _is_length(size: int, queries: int, lengths: Collection[int]) -> bool:
    """Whether a size is the length of an input or the product of two lengths. The size may include
    one or two extra tokens, or the tokens in a cache."""
    several = {*lengths}
    products = {a * b for a in several for b in several}
    near = {size, size - 1, size - 2, size - queries}
    return size == 1 or bool(near & several) or size in products


def _axis_of_queries(cells: Cells) -> int | None:
    """Return the axis of the queries, or None; of several, the one as long as the axis of keys."""
    axes = [axis for axis, kind in enumerate(cells.kinds) if kind == QUERIES]
    if len(axes) < 2:
        return axes[0] if axes else None
    matches = [axis for axis in axes if cells.shape[axis] == cells.shape[cells.along_keys]]
    if len(matches) != 1:
        raise ArgumentError(
            f"queries along {len(axes)} axes of the scores {cells.shape}",
            expected="one axis of queries",
            remedy=REMEDY,
        )
    return matches[0]


def _named(sizes: list[int], texts: int | None, fits: Callable[[int], bool]) -> list[Joined]:
    """Return the roles of the batch axes by the first rule that fits."""
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
        case [size] if fits(size):  # a single text, as in a loop over texts
            return [[(size, HEADS)]]
        case [size] if size == count:  # a single head, as in a loop over heads
            return [[(size, TEXTS)]]
        case [size] if heads := _heads_of_parts(size, count, fits):
            return [[(count, TEXTS), (size // count // heads, PARTS), (heads, HEADS)]]
    raise ArgumentError(
        f"batch axes of sizes {sizes}, for {texts or 'an unknown number of'} texts",
        expected="texts before heads, and heads that fit the widths of the module",
        remedy=REMEDY,
    )


def _heads_of_parts(size: int, texts: int, fits: Callable[[int], bool]) -> int:
    """Return the number of heads on an axis of texts × parts × heads; 0 if no number fits."""
    fitting = (n for n in range(2, size // texts + 1) if size % (texts * n) == 0 and fits(n))
    return next(fitting, 0)
