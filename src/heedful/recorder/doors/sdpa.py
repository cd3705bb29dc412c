"""Makes a call of what one of SDPA's kernels was given.

The kernels take (batch, heads, N, d), but a model may have put anything into the first two axes,
such as windows into the batch. So these are read and owned here as those of any product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN
from heedful.ops.log_sum_exp import beside
from heedful.ops.masks import Causal
from heedful.recorder.doors import dead_rows
from heedful.recorder.doors.softmax_matmul import shared_heads
from heedful.recorder.following.alignment import Atom, Order, aligned
from heedful.recorder.following.axis_rules import EFFICIENT
from heedful.recorder.following.feature_rules import of_factor
from heedful.recorder.following.scores import Product, product_of
from heedful.recorder.following.strides import Axis, Part, Parts, View
from heedful.recorder.observed import Observed, Source
from heedful.recorder.owners.axis_owners import Sides
from heedful.recorder.owners.told_or_followed import Owning

FLASH = "_scaled_dot_product_flash_attention"
UNKNOWN = ("cu_seqlens_q", "cu_seqlens_k", "seqlen_k", "window_size")  # of the efficient kernel


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


def kernel(
    name: str,
    made: tuple,
    given: dict[str, Any],
    view: Callable[[Tensor], View],
    owning: Owning,
) -> Observed:
    """The call of one of SDPA's kernels of this name.

    Args:
        name: as in `aten`.
        made: its results, the output first.
        given: its arguments by name.
        view: gives what is known of a tensor's axes.
        owning: decides whose those axes are.

    Raises:
        TypeError: as `_heads_first` says.
    """
    output, sums, offset = made[0], beside(name, made), _offset(name, given)
    if name == EFFICIENT:
        given, output = _heads_first(given), output.transpose(1, 2)
    query, key, scale = given["query"], given["key"], given.get("scale")
    query_axes, key_axes = (of_factor(view(one)) for one in (query, key))
    call = KernelCall(
        query,
        key,
        given["value"],
        output,
        sums,
        query_axes,
        key_axes,
        given.get("attn_mask", given.get("attn_bias")),
        offset,
        query.shape[-1] ** -0.5 if scale is None else float(scale),
    )
    seen = fused(call, owning)
    seen.dropout = given.get("dropout_p") or 0.0
    return seen


def _offset(name: str, given: dict[str, Any]) -> int | None:
    """The key at which a kernel has the first query, where it hides all later ones; else None.

    In flash attention for GPUs the last query stands at the last key: `causal_lower_right` asks it
    for that (torch/nn/attention/bias.py), and `scaled_dot_product_attention` never does otherwise.
    The memory-efficient kernel is told by `custom_mask_type`: 0 hides none, with 1 the first query
    stands at the first key, with 2 the last one at the last.
    """
    hides = given.get("custom_mask_type", int(given.get("is_causal", False)))
    axis = 1 if name == EFFICIENT else 2
    if not hides:
        return None
    is_last = hides == 2 or name == FLASH
    return given["key"].shape[axis] - given["query"].shape[axis] if is_last else 0


def _heads_first(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a kernel of tokens × heads, (B, N, H, d), as others are given them.

    Raises:
        TypeError: texts of unequal lengths that stand in one row, a window, or two masks.
    """
    more = [one for one in UNKNOWN if given.get(one) is not None]
    if given.get("bias") is not None and given["custom_mask_type"]:
        more.append("a bias and a causal mask")
    if more:
        raise TypeError(f"memory-efficient attention with {more[0]}, which is not understood")
    turned = {one: given[one].transpose(1, 2) for one in ("query", "key", "value")}
    return {**given, **turned, "attn_mask": given.get("bias")}


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
