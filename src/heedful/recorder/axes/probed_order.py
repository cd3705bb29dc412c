"""Names the axes of a map by the texts and positions on which its queries and keys depend.

`probe` finds the text on which each query and key depends and, along each axis of the module's
inputs, the position. Along an axis of texts, the text changes. Along parts of a text, the positions
of keys change; along queries, only the positions of queries; along heads, nothing changes. An axis
that joins several of these, as (texts × heads), is split into its factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.recorder.axes.usual_order import HEADS, PARTS, TEXTS, Joined, Order
from heedful.recorder.doors.tape_cells import BATCH, KEYS, QUERIES, Cells

UNCHANGED = "no input of the module that attends changes its queries or keys"
SEVERAL, NONE = -1, -2  # in place of an index: the row depends on several, or on none


class Codes(NamedTuple):
    """The text on which each query (or key) depends, (rows,), and its positions (probes, rows)."""

    texts: Tensor
    positions: Tensor


class UnsettledError(Exception):
    """Probing does not determine the axes of a call."""


class _Tables(NamedTuple):
    """Codes arranged by the axes of a map without its axis of keys, written as (…).

    texts: the text of each row of the map, (…).
    queries, keys: positions of the row's query, (probes, …), and keys, (probes · keys, …).
    """

    texts: Tensor
    queries: Tensor
    keys: Tensor


def probed_order(cells: Cells, query_codes: Codes, key_codes: Codes, texts: int) -> Order:
    """Return the axes of a map; raise `UnsettledError` if probing does not determine them."""
    tables = _tables(cells, query_codes, key_codes, texts)
    rest = [axis for axis in range(len(cells.shape)) if axis != cells.along_keys]
    axes: list[Joined] = [[(size, KEYS)] for size in cells.shape]
    has_packed_heads = cells.kinds.count(QUERIES) > 1
    for number, axis in enumerate(rest):
        is_queries = cells.kinds[axis] == QUERIES and not has_packed_heads
        axes[axis] = _axis(tables, number, cells.shape[axis], is_queries)
    for axis in rest:
        if cells.shape[axis] == 1:
            axes[axis] = [(1, HEADS if cells.kinds[axis] == BATCH else QUERIES)]
    order = Order(axes)
    if order.count(TEXTS) not in (1, texts):
        raise UnsettledError(f"{order.count(TEXTS)} of {texts} texts along its axes")
    probes = _probes(tables)
    # with one token per text, there are no positions to probe
    is_single = not probes and order.count(QUERIES) == 1 < texts
    is_single = is_single and bool((query_codes.texts >= 0).all())
    if order.count(HEADS) > 1 and not (is_single or _have_positions(probes)):
        raise UnsettledError("its rows change with several positions" if probes else UNCHANGED)
    return order


def _tables(cells: Cells, query_codes: Codes, key_codes: Codes, texts: int) -> _Tables:
    """Arrange codes by the axes of a map; raise `UnsettledError` unless each row has one text."""
    along = cells.along_keys
    queries = cells.queries.expand([1 if a == along else n for a, n in enumerate(cells.shape)])
    queries = queries.squeeze(along)
    keys = cells.keys.expand(cells.shape).movedim(along, 0)
    text = torch.zeros_like(queries)
    if texts > 1:
        texts_of_keys = key_codes.texts[keys]
        highest = texts_of_keys.amax(0)
        lowest = torch.where(texts_of_keys == NONE, texts, texts_of_keys).amin(0)
        text_of_query = query_codes.texts[queries]
        if bool((texts_of_keys == SEVERAL).any() | (text_of_query == SEVERAL).any()):
            raise UnsettledError("its queries or keys change with several texts")
        if bool(((lowest < highest) & (highest >= 0)).any()):
            raise UnsettledError("its keys are of several texts")
        text = torch.where(text_of_query >= 0, text_of_query, highest)
        if bool(((highest >= 0) & (text != highest)).any()):
            raise UnsettledError("its queries and keys are of two texts")
        if bool((text < 0).any()):
            raise UnsettledError("neither its queries nor its keys change with a text")
    positions = key_codes.positions[:, keys].flatten(0, 1)
    return _Tables(text, query_codes.positions[:, queries], positions)


def _probes(tables: _Tables) -> list[Tensor]:
    """Return the positions along each probed axis, except along axes of texts."""
    return [probe for probe in (*tables.queries, *tables.keys)
            if not bool(((probe == tables.texts) | (probe == NONE)).all())]  # fmt: skip


def _have_positions(probes: list[Tensor]) -> bool:
    """Whether each row has a query or key that depends on a single position of some input."""
    return bool(probes) and bool(torch.stack([probe >= 0 for probe in probes]).any(0).all())


def _axis(tables: _Tables, axis: int, size: int, is_queries: bool) -> Joined:
    """Return the factors of an axis: its first split into factors with different roles."""
    if is_queries and _role(tables, axis, size, size, 1) == HEADS:
        return [(size, QUERIES)]  # learned queries depend on no input
    for steps in _splits(size):
        pieces = [*pairwise(steps)]  # outer and inner stride of each factor
        roles = [_role(tables, axis, size, outer, inner) for outer, inner in pieces]
        if "" not in roles and len(set(roles)) == len(roles):
            return [
                (outer // inner, role) for (outer, inner), role in zip(pieces, roles, strict=True)
            ]
    raise UnsettledError(f"an axis of {size} is not a product of texts, parts, heads and queries")


def _splits(size: int) -> Iterator[list[int]]:
    """Yield the strides of each split of an axis into one, two or three factors."""
    yield [size, 1]
    divisors = [step for step in range(size - 1, 1, -1) if size % step == 0]
    for step in divisors:
        yield [size, step, 1]
    for outer in divisors:
        yield from (
            [size, outer, inner, 1] for inner in divisors if inner < outer and not outer % inner
        )


def _role(tables: _Tables, axis: int, size: int, outer: int, inner: int) -> str:
    """Return the role of a factor of an axis; "" if it has no single role."""
    text, queries, keys = (
        _along(table, axis + offset, size, outer, inner)
        for table, offset in zip(tables, (0, 1, 1), strict=True)
    )
    if not _is_constant(text):
        in_order = torch.arange(text.shape[-1], device=text.device)
        return TEXTS if torch.equal(text, in_order.expand_as(text)) else ""
    changes = [not _is_constant(queries), not _is_constant(keys)]
    if changes == [False, False]:
        return HEADS
    if changes == [True, False]:
        return QUERIES if _are_distinct(queries) else ""
    # if only keys change but queries have positions, the factor may be heads with their own keys
    is_sure = changes[0] or not bool((queries != NONE).any())
    return PARTS if is_sure and _are_distinct(torch.cat([queries, keys])) else ""


def _along(table: Tensor, axis: int, size: int, outer: int, inner: int) -> Tensor:
    """Move a factor of an axis behind all other axes and factors."""
    moved = table.movedim(axis, -1)
    if moved.shape[-1] != size:
        return moved
    return moved.unflatten(-1, (size // outer, outer // inner, inner)).transpose(-1, -2)


def _is_constant(table: Tensor) -> bool:
    return bool((table == table[..., :1]).all())


def _are_distinct(table: Tensor) -> bool:
    """Whether positions along the last axis of (probes, …, size) differ, in a sample of rows."""
    rows = table.movedim(0, -1)  # (…, size, probes)
    flat = rows.reshape(-1, *rows.shape[-2:])
    return all(len(row.unique(dim=0)) == len(row) for row in flat[:: max(1, len(flat) // 8)])
