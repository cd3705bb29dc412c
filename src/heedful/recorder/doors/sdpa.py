"""Makes a call of what one of SDPA's kernels was given.

The kernels take (batch, heads, N, d), but a model may have put anything into the first two axes,
such as windows into the batch. So these are read and owned here as those of any product.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN
from heedful.ops.masks import Causal
from heedful.recorder.doors import dead_rows
from heedful.recorder.doors.softmax_matmul import shared_heads
from heedful.recorder.following.alignment import Atom, Order, aligned
from heedful.recorder.following.scores import Product, product_of
from heedful.recorder.following.strides import Axis, Part, Parts
from heedful.recorder.observed import Observed, Source
from heedful.recorder.sequences.axis_owners import Sides
from heedful.recorder.sequences.told_or_followed import Owning


class KernelCall(NamedTuple):
    """What one of SDPA's kernels was given and gave: tensors of four axes (…, …, N or M, d).

    sums: (…, …, N), the log-sum-exp of each row, where the kernel gave it.
    query_axes, key_axes: the axes of query and key, as they were followed.
    offset: the key at which the first query of a causal call stands; None of any other.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    sums: Tensor | None
    query_axes: list[Parts | None]
    key_axes: list[Parts | None]
    mask: Tensor | None
    offset: int | None
    scale: float

    @property
    def group(self) -> int:
        """How many query heads share a key head."""
        return self.query.shape[1] // self.key.shape[1]


def fused(call: KernelCall, owning: Owning) -> Observed:
    """The call of a kernel in the form that all doors share."""
    made = _arranged(call, owning)
    before = made.mask
    if isinstance(before, Tensor) and before.is_floating_point():
        # kernels add in float32 at the least
        kind = torch.promote_types(before.dtype, torch.float32)
        steps = [dead_rows.Step("scale", call.scale, kind), dead_rows.Step("add", before, kind)]
        left = dead_rows.settle(made, steps, made.query)
        if left is not None:
            # these rows are left to the check: with numbers that still count, since the least one
            # of a type is taken for minus infinity
            settled: Any = made.mask
            wide, counts = settled.to(kind), left[..., None] & (settled > -math.inf)
            made.mask = torch.where(counts, wide.clamp(min=HIDDEN / 4), wide)
            made.source = None
    if call.offset is not None:
        made.mask, made.causal = Causal(call.offset), True
    made.door = "scaled_dot_product_attention"
    return made


def _product(call: KernelCall) -> Product:
    """The product of queries and keys that the kernel computes inside."""
    batch, heads, rows, width = call.key_axes
    if call.group > 1 and heads is not None:  # the kernel repeats each key for a group of heads
        heads = (*heads, Part(Axis(call.group, is_copy=True), 1, call.group))
    return product_of(call.query, call.key.mT, call.query_axes, [batch, heads, width, rows])


def _outer(parts: Parts, group: int) -> Parts | None:
    """The axis of the key heads: that of the query heads without its last parts, `group` in size.

    None where no such parts are there.
    """
    left = list(parts)
    while group > 1 and left and group % left[-1].size == 0:
        group //= left.pop().size
    return tuple(left) if group == 1 else None


def _arranged(call: KernelCall, owning: Owning) -> Observed:
    """The call with its axes in order, its mask still as the kernel was given it."""
    product = _product(call)
    order = Order([product.axes])

    def sides() -> Sides:
        shared = [atom for parts in product.batch for atom in order.atoms(parts)]
        rows, columns = order.atoms(product.rows), order.atoms(product.columns)
        return Sides(shared, rows, [], columns, product.sums_features)

    groups = owning.groups(sides, order, product.origins, product.axes)
    of_queries, of_keys = groups.all[:3], [*groups.all[:2], groups.keys]
    asking = [*product.batch, product.rows, None]
    key, value = _keys_and_values(call, product, order, of_keys)
    if call.group > 1:
        key, value = shared_heads(key, value, math.prod(atom.size for atom in groups.heads), True)
    mask, source, sums = call.mask, None, call.sums
    if mask is not None:
        ordered = aligned(mask, product.axes, order, groups.all)[..., 0]
        mask, source = ordered, Source(mask, ordered.stride())
    query = aligned(call.query, asking, order, of_queries)
    # all texts in one row may ask one memory, which then is that of each of them
    key, value = (one.expand(len(query), -1, -1, -1) for one in (key, value))
    return Observed(
        query,
        key,
        value,
        aligned(call.output, asking, order, of_queries),
        call.scale,
        mask=mask,
        source=source,
        sums=None if sums is None else aligned(sums[..., None], asking, order, of_queries)[..., 0],
        inferred=groups.inferred,
        batch=groups.batch,
        follows=groups.follows,
        moved=groups.moved,
        is_of_two=groups.is_of_two,
        followed=groups.followed,
        are_windows=groups.are_windows,
    )


def _keys_and_values(
    call: KernelCall, product: Product, order: Order, groups: list[list[Atom]]
) -> tuple[Tensor, Tensor]:
    """Keys and values with their axes in order, where possible once for each group of heads."""
    key, value, outer = call.key, call.value, _outer(product.batch[1], call.group)
    if outer is None:  # nothing is known of the axis of the heads
        key, value = (one.repeat_interleave(call.group, dim=1) for one in (key, value))
        outer = product.batch[1]
    axes = [product.batch[0], outer, product.columns, None]
    return aligned(key, axes, order, groups), aligned(value, axes, order, groups)
