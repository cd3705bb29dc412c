"""Names the axes of a map by what probing has shown of the rows of its queries and keys.

Each row changes with a text, and with places along the inputs of the module that attends. Along an
axis of texts the text changes; along one of parts of a text the places of queries and of keys;
along one of queries those of queries alone; along one of heads nothing. An axis may join several of
these: then its digits are compared one by one.
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
SEVERAL, NONE = -1, -2  # of a row that changes with several texts or places, or with none


class Codes(NamedTuple):
    """What probing has shown of rows: the text of each, (rows,), and its places, (probes, rows)."""

    texts: Tensor
    places: Tensor


class UnsettledError(Exception):
    """Probing does not tell what the axes of a call are of."""


class _Tables(NamedTuple):
    """Codes with the axes of a map without that of its keys.

    texts: (…). queries: (probes, …). keys: (probes · keys, …).
    """

    texts: Tensor
    queries: Tensor
    keys: Tensor


def probed_order(cells: Cells, of_queries: Codes, of_keys: Codes, texts: int) -> Order:
    """The axes of a map; `UnsettledError` says what cannot be told."""
    tables = _tables(cells, of_queries, of_keys, texts)
    rest = [axis for axis in range(len(cells.shape)) if axis != cells.along_keys]
    axes: list[Joined] = [[(size, KEYS)] for size in cells.shape]
    several = cells.kinds.count(QUERIES) > 1
    for place, axis in enumerate(rest):
        is_queries = cells.kinds[axis] == QUERIES and not several
        axes[axis] = _axis(tables, place, cells.shape[axis], is_queries)
    for axis in rest:
        if cells.shape[axis] == 1:
            axes[axis] = [(1, HEADS if cells.kinds[axis] == BATCH else QUERIES)]
    order = Order(axes)
    if order.count(TEXTS) not in (1, texts):
        raise UnsettledError(f"{order.count(TEXTS)} of {texts} texts along one axis")
    probes = _probes(tables)
    # of the one token of each text there are no other places
    is_step = not probes and order.count(QUERIES) == 1 < texts
    is_step = is_step and bool((of_queries.texts >= 0).all())
    if order.count(HEADS) > 1 and not (is_step or _are_known(probes)):
        raise UnsettledError("its rows change with several places" if probes else UNCHANGED)
    return order


def _tables(cells: Cells, of_queries: Codes, of_keys: Codes, texts: int) -> _Tables:
    """The codes of each row of the map, of which all keys have to be of one text."""
    along = cells.along_keys
    queries = cells.queries.expand([1 if a == along else n for a, n in enumerate(cells.shape)])
    queries = queries.squeeze(along)
    keys = cells.keys.expand(cells.shape).movedim(along, 0)
    text = torch.zeros_like(queries)
    if texts > 1:
        every = of_keys.texts[keys]
        most = every.amax(0)
        least = torch.where(every == NONE, texts, every).amin(0)
        own = of_queries.texts[queries]
        if bool((every == SEVERAL).any() | (own == SEVERAL).any()):
            raise UnsettledError("its queries or keys change with several texts")
        if bool(((least < most) & (most >= 0)).any()):
            raise UnsettledError("its keys are of several texts")
        text = torch.where(own >= 0, own, most)
        if bool(((most >= 0) & (text != most)).any()):
            raise UnsettledError("its queries and keys are of two texts")
        if bool((text < 0).any()):
            raise UnsettledError("neither its queries nor its keys change with a text")
    places = of_keys.places[:, keys].flatten(0, 1)
    return _Tables(text, of_queries.places[:, queries], places)


def _probes(tables: _Tables) -> list[Tensor]:
    """The places along each input, but for those along the axis of its texts."""
    every = [*tables.queries, *tables.keys]
    return [probe for probe in every
            if not bool(((probe == tables.texts) | (probe == NONE)).all())]  # fmt: skip


def _are_known(probes: list[Tensor]) -> bool:
    """Whether each row has a query or keys with a place in some input."""
    return bool(probes) and bool(torch.stack([probe >= 0 for probe in probes]).any(0).all())


def _axis(tables: _Tables, axis: int, size: int, is_queries: bool) -> Joined:
    """What an axis is of: the first way to take its digits in which each is of one kind."""
    if is_queries and _role(tables, axis, size, size, 1) == HEADS:
        return [(size, QUERIES)]  # of queries that change with no input, such as learned ones
    for steps in _splits(size):
        pieces = [*pairwise(steps)]  # outer and inner step of each digit
        roles = [_role(tables, axis, size, outer, inner) for outer, inner in pieces]
        if "" not in roles and len(set(roles)) == len(roles):
            return [
                (outer // inner, role) for (outer, inner), role in zip(pieces, roles, strict=True)
            ]
    raise UnsettledError(f"an axis of {size}, of which no part changes alone and in order")


def _splits(size: int) -> Iterator[list[int]]:
    """The steps at which an axis is split into one, two or three digits."""
    yield [size, 1]
    divisors = [step for step in range(size - 1, 1, -1) if size % step == 0]
    for step in divisors:
        yield [size, step, 1]
    for outer in divisors:
        yield from (
            [size, outer, inner, 1] for inner in divisors if inner < outer and not outer % inner
        )


def _role(tables: _Tables, axis: int, size: int, outer: int, inner: int) -> str:
    """What a digit of an axis is of; "" where it is of no one kind."""
    text, queries, keys = (
        _along(table, axis + lead, size, outer, inner)
        for table, lead in zip(tables, (0, 1, 1), strict=True)
    )
    if not _is_constant(text):
        in_order = torch.arange(text.shape[-1], device=text.device)
        return TEXTS if torch.equal(text, in_order.expand_as(text)) else ""
    changes = [not _is_constant(queries), not _is_constant(keys)]
    if changes == [False, False]:
        return HEADS
    if changes == [True, False]:
        return QUERIES if _are_apart(queries) else ""
    # where a known query sees keys of several places, heads may have each their own
    is_sure = changes[0] or not bool((queries != NONE).any())
    return PARTS if is_sure and _are_apart(torch.cat([queries, keys])) else ""


def _along(table: Tensor, axis: int, size: int, outer: int, inner: int) -> Tensor:
    """A table with a digit of an axis last, and the other digits before it."""
    moved = table.movedim(axis, -1)
    if moved.shape[-1] != size:
        return moved
    return moved.unflatten(-1, (size // outer, outer // inner, inner)).transpose(-1, -2)


def _is_constant(table: Tensor) -> bool:
    return bool((table == table[..., :1]).all())


def _are_apart(table: Tensor) -> bool:
    """Whether all places along the last axis of (probes, …, size) differ from each other."""
    rows = table.movedim(0, -1)  # (…, size, probes)
    flat = rows.reshape(-1, *rows.shape[-2:])
    return all(len(row.unique(dim=0)) == len(row) for row in flat[:: max(1, len(flat) // 8)])
