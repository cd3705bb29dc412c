"""Says for each cell of a map which row of the query and which row of the key it belongs to.

The axes of a map are those of its softmax. Where the steps before it left all numbers in their
places, as most do, strides tell what each axis is of; else the steps are run on places (`index`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.recorder.doors.tape import Meeting
from heedful.recorder.doors.tape_steps import OUTSIDE, Step

# What an axis is of: along BATCH queries and keys change together, ONE has a single place
QUERIES, KEYS, BATCH, ONE = "queries", "keys", "batch", "one"


@dataclass
class Cells:
    """The axes of a map, and the rows of its two factors.

    kinds: of each axis, `QUERIES`, `KEYS`, `BATCH` or `ONE`; one of them is `KEYS`.
    shape: their sizes, without columns that are of no key, such as that of a sink.
    queries, keys: the row of query and key at each place, with size 1 along the axes of the other.
    query, key: the factors, (rows, d).
    is_turned: whether the rows of the product are keys.
    """

    kinds: list[str]
    shape: tuple[int, ...]
    queries: Tensor
    keys: Tensor
    query: Tensor
    key: Tensor
    is_turned: bool = False

    @property
    def along_keys(self) -> int:
        """The axis of the keys."""
        return self.kinds.index(KEYS)


def cells_of(meeting: Meeting) -> Cells:
    """The cells of a call; `TypeError` for several axes of keys, or scores of no query and key."""
    if not meeting.has_product:
        return _of_weights_alone(meeting)
    softmax = meeting.softmax
    known = _by_strides(softmax) if softmax.is_plain else None
    kinds, rows, columns = known or _by_places(softmax)
    query, key, is_turned = meeting.query, meeting.key, _is_turned(meeting)
    if is_turned:  # keys times queries
        kinds = [{QUERIES: KEYS, KEYS: QUERIES}.get(kind, kind) for kind in kinds]
        rows, columns, query, key = columns, rows, key, query
    if kinds.count(KEYS) > 1:
        raise TypeError(f"keys along {kinds.count(KEYS)} axes of the scores")
    if KEYS not in kinds:  # a single key
        if kinds[-1] != ONE:
            raise TypeError("scores without an axis of keys")
        kinds[-1] = KEYS
    shape = torch.broadcast_shapes(rows.shape, columns.shape)
    rows = rows.narrow(kinds.index(KEYS), 0, 1)
    for dim, kind in enumerate(kinds):
        columns = columns.narrow(dim, 0, 1) if kind == QUERIES else columns
    query, key = (factor.reshape(-1, factor.shape[-1]) for factor in (query, key))
    return Cells(kinds, tuple(shape), rows, columns, query, key, is_turned)


def _of_weights_alone(meeting: Meeting) -> Cells:
    """The cells of weights of a softmax of no product, as they met values: (b, N, M)."""
    *lead, N, M = meeting.weights.size
    b = math.prod(lead)
    rows = torch.arange(b * N, device="cpu").view(b, N, 1)
    columns = torch.arange(b * M, device="cpu").view(b, 1, M)
    kinds = [BATCH if b > 1 else ONE, QUERIES if N > 1 else ONE, KEYS]
    nothing = meeting.query.new_zeros(())
    query, key = nothing.expand(b * N, 1), nothing.expand(b * M, 1)
    return Cells(kinds, (b, N, M), rows, columns, query, key)


def in_cells(meeting: Meeting) -> Tensor:
    """The weights that values met, in the axes of the softmax, run again."""
    view, softmax = meeting.weights, meeting.softmax
    if not meeting.has_product:
        return meeting.query.reshape(-1, *meeting.query.shape[-2:])
    if view.is_whole and view.step.is_plain and softmax.is_plain:  # they stand where they stood
        return view.step.value({}).as_strided(softmax.shape, softmax.stride)
    used, indices = view.value({}), dict[int, Tensor]()
    places = view.index(indices)
    order = without_outside(softmax.index(indices))
    if places.shape == order.shape and torch.equal(places, order):
        return used
    table = used.new_full((math.prod(softmax.product.shape),), torch.nan)
    inside = places != OUTSIDE
    if int(inside.sum()) < order.numel():
        raise TypeError("some of the weights alone meet these values")
    table[places[inside].to(used.device)] = used[inside.to(used.device)]
    return table[order.to(used.device)]


def _by_strides(softmax: Step) -> tuple[list[str], Tensor, Tensor] | None:
    """Kinds, rows and columns by strides; None where an axis goes through rows and columns."""
    n, m = softmax.product.shape[-2:]
    kinds: list[str] = []
    rows = columns = torch.zeros([1] * len(softmax.shape), dtype=torch.long, device="cpu")
    for dim, (size, stride) in enumerate(zip(softmax.shape, softmax.stride, strict=True)):
        steps = torch.arange(size, device="cpu").view(size, *[1] * (len(softmax.shape) - 1 - dim))
        if size == 1:
            kinds.append(ONE)
        elif stride and stride % (n * m) == 0:
            kinds.append(BATCH)
            rows, columns = rows + steps * (stride // m), columns + steps * (stride // n)
        elif stride and stride % m == 0 and (size - 1) * stride < n * m:
            kinds.append(QUERIES)
            rows = rows + steps * (stride // m)
        elif stride and (size - 1) * stride < m:
            kinds.append(KEYS)
            columns = columns + steps * stride
        else:
            return None
    return kinds, rows, columns


def _by_places(softmax: Step) -> tuple[list[str], Tensor, Tensor]:
    """Kinds, rows and columns of each number that is of the product."""
    places = without_outside(softmax.index({}))
    if bool((places == OUTSIDE).any()):
        raise TypeError("scores of which some are of no query and key")
    n, m = softmax.product.shape[-2:]
    rows, columns = places // m, places // (n * m) * m + places % m
    kinds = []
    for dim, size in enumerate(places.shape):
        if size == 1:
            kinds.append(ONE)
        elif not _varies(rows, dim):
            kinds.append(KEYS)
        else:
            kinds.append(BATCH if _varies(columns, dim) else QUERIES)
    return kinds, rows, columns


def _varies(places: Tensor, dim: int) -> bool:
    return not torch.equal(places.narrow(dim, 0, 1), places.narrow(dim, 1, 1))


def without_outside(places: Tensor) -> Tensor:
    """Places without slices in which no number is of the product, such as a sink's column."""
    inside = places != OUTSIDE
    if bool(inside.all()):
        return places
    for dim in range(places.ndim):
        others = [at for at in range(places.ndim) if at != dim]
        kept = inside.any(others) if others else inside
        places, inside = (one.index_select(dim, kept.nonzero()[:, 0]) for one in (places, inside))
    return places


def _is_turned(meeting: Meeting) -> bool:
    """Whether the values are weighed along the rows of the product, which then are keys."""
    weights, (n, m) = meeting.weights, meeting.softmax.product.shape[-2:]
    if weights.size[-1] < 2:
        return False
    if weights.step.is_plain:
        _refuse_heads(weights.stride[-1] >= n * m)
        return weights.stride[-1] % m == 0 if m > 1 else False
    first, second = weights.index({})[..., :2].unbind(-1)
    inside = (first != OUTSIDE) & (second != OUTSIDE)
    _refuse_heads(bool((first // (n * m) != second // (n * m))[inside].any()))
    return bool(inside.any()) and not bool((first // m == second // m)[inside].all())


def _refuse_heads(are_mixed: bool) -> None:
    if are_mixed:
        raise TypeError("weights of several heads or texts that are added up after their softmax")
