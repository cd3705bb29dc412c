"""The query and the key of each cell of a map that a model computed by hand.

The axes of the map are those of its softmax. Usually, no step before the softmax moves an entry:
then strides determine each axis. Otherwise, the steps are replayed on indices (`Step.index`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.recorder.doors.tape import TapedCall
from heedful.recorder.doors.tape_steps import OUTSIDE, Step

# Kinds of axes: along them, the query, the key or both change; ONE: an axis of size 1
QUERIES, KEYS, BATCH, ONE = "queries", "keys", "batch", "one"


@dataclass
class Cells:
    """The axes of a map, and the query and key of each cell, as rows of two tables.

    kinds: `QUERIES`, `KEYS`, `BATCH` or `ONE` for each axis; exactly one is `KEYS`.
    shape: the sizes of the axes, without columns that belong to no key, such as a sink's.
    queries, keys: for each cell, its row of `query` and `key`; size 1 where the row is constant.
    query, key: all queries and all keys, (rows, d).
    is_transposed: whether the model multiplied keys by queries, and not queries by keys.
    """

    kinds: list[str]
    shape: tuple[int, ...]
    queries: Tensor
    keys: Tensor
    query: Tensor
    key: Tensor
    is_transposed: bool = False

    @property
    def along_keys(self) -> int:
        """The axis of the keys."""
        return self.kinds.index(KEYS)


def cells_of(taped: TapedCall) -> Cells:
    """Return the cells of a map; raise `TypeError` unless its scores have one axis of keys."""
    if not taped.has_product:
        return _cells_of_weights(taped)
    softmax = taped.softmax
    axes = _by_strides(softmax) if softmax.is_plain else None
    kinds, rows, columns = axes or _by_index(softmax)
    query, key, is_transposed = taped.first, taped.second, _is_transposed(taped)
    if is_transposed:
        kinds = [{QUERIES: KEYS, KEYS: QUERIES}.get(kind, kind) for kind in kinds]
        rows, columns, query, key = columns, rows, key, query
    if kinds.count(KEYS) > 1:
        raise TypeError(f"keys along {kinds.count(KEYS)} axes of the scores")
    if KEYS not in kinds:  # there is a single key
        if kinds[-1] != ONE:
            raise TypeError("scores without an axis of keys")
        kinds[-1] = KEYS
    shape = torch.broadcast_shapes(rows.shape, columns.shape)
    rows = rows.narrow(kinds.index(KEYS), 0, 1)
    for dim, kind in enumerate(kinds):
        columns = columns.narrow(dim, 0, 1) if kind == QUERIES else columns
    query, key = (factor.reshape(-1, factor.shape[-1]) for factor in (query, key))
    return Cells(kinds, tuple(shape), rows, columns, query, key, is_transposed)


def _cells_of_weights(taped: TapedCall) -> Cells:
    """Return the cells (b, N, M) of a softmax whose scores are not a product."""
    *lead, N, M = taped.weights.size
    b = math.prod(lead)
    rows = torch.arange(b * N, device="cpu").view(b, N, 1)
    columns = torch.arange(b * M, device="cpu").view(b, 1, M)
    kinds = [BATCH if b > 1 else ONE, QUERIES if N > 1 else ONE, KEYS]
    zero = taped.first.new_zeros(())
    query, key = zero.expand(b * N, 1), zero.expand(b * M, 1)
    return Cells(kinds, (b, N, M), rows, columns, query, key)


def replayed_weights(taped: TapedCall) -> Tensor:
    """Replay the weights that were multiplied with values, with the axes of the softmax."""
    view, softmax = taped.weights, taped.softmax
    if not taped.has_product:
        return taped.first.reshape(-1, *taped.first.shape[-2:])
    if view.is_whole and view.step.is_plain and softmax.is_plain:  # no entry has moved
        return view.step.value({}).as_strided(softmax.shape, softmax.stride)
    weights, cache = view.value({}), dict[int, Tensor]()
    index = view.index(cache)
    order = drop_outside(softmax.index(cache))
    if index.shape == order.shape and torch.equal(index, order):
        return weights
    table = weights.new_full((math.prod(softmax.product.shape),), torch.nan)
    inside = index != OUTSIDE
    if int(inside.sum()) < order.numel():
        raise TypeError("only some of the weights are multiplied with these values")
    table[index[inside].to(weights.device)] = weights[inside.to(weights.device)]
    return table[order.to(weights.device)]


def _by_strides(softmax: Step) -> tuple[list[str], Tensor, Tensor] | None:
    """Return kinds, rows and columns by strides; None if these do not show the kind of an axis."""
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


def _by_index(softmax: Step) -> tuple[list[str], Tensor, Tensor]:
    """Return kinds, rows and columns by the index of each entry in the product."""
    index = drop_outside(softmax.index({}))
    if bool((index == OUTSIDE).any()):
        raise TypeError("scores that are not all products of a query and a key")
    n, m = softmax.product.shape[-2:]
    rows, columns = index // m, index // (n * m) * m + index % m
    kinds = []
    for dim, size in enumerate(index.shape):
        if size == 1:
            kinds.append(ONE)
        elif not _varies(rows, dim):
            kinds.append(KEYS)
        else:
            kinds.append(BATCH if _varies(columns, dim) else QUERIES)
    return kinds, rows, columns


def _varies(index: Tensor, dim: int) -> bool:
    return not torch.equal(index.narrow(dim, 0, 1), index.narrow(dim, 1, 1))


def drop_outside(index: Tensor) -> Tensor:
    """Remove all slices that have only entries `OUTSIDE`, such as the column of a sink."""
    inside = index != OUTSIDE
    if bool(inside.all()):
        return index
    for dim in range(index.ndim):
        other_dims = [other for other in range(index.ndim) if other != dim]
        has_entry = inside.any(other_dims) if other_dims else inside
        slices = has_entry.nonzero()[:, 0]
        index, inside = index.index_select(dim, slices), inside.index_select(dim, slices)
    return index


def _is_transposed(taped: TapedCall) -> bool:
    """Whether the product is keys times queries: then the weights of a query are in a column."""
    weights, (n, m) = taped.weights, taped.softmax.product.shape[-2:]
    if weights.size[-1] < 2:
        return False
    if weights.step.is_plain:
        _raise_if_summed(weights.stride[-1] >= n * m)
        return weights.stride[-1] % m == 0 if m > 1 else False
    first, second = weights.index({})[..., :2].unbind(-1)
    inside = (first != OUTSIDE) & (second != OUTSIDE)
    _raise_if_summed(bool((first // (n * m) != second // (n * m))[inside].any()))
    return bool(inside.any()) and not bool((first // m == second // m)[inside].all())


def _raise_if_summed(is_summed: bool) -> None:
    if is_summed:
        raise TypeError("weights of several heads or texts that are summed after their softmax")
