"""A call of one of torch's fused kernels, whose leading axes may be of anything."""

from __future__ import annotations

import math

from torch import Tensor

from heedful.ops.masks import Causal
from heedful.recorder.doors import uniform_rows
from heedful.recorder.doors.softmax_matmul import shared_heads
from heedful.recorder.following.alignment import Order, aligned
from heedful.recorder.following.scores import Product, product_of
from heedful.recorder.following.strides import Axis, Part, Parts
from heedful.recorder.observed import Observed
from heedful.recorder.sequences.owners import Sides
from heedful.recorder.sequences.owning import Owning


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    of_query: list[Parts | None],
    of_key: list[Parts | None],
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    owning: Owning,
) -> Observed:
    """A call as all doors tell it, of (…, …, N, d)."""
    group = query.shape[1] // key.shape[1]
    if group > 1:  # which the kernel takes for heads that share a key
        shared = Part(Axis(group, is_copy=True), 1, group)
        of_key = [of_key[0], None if of_key[1] is None else (*of_key[1], shared), *of_key[2:]]
    product = product_of(query, key.mT, of_query, [*of_key[:2], of_key[3], of_key[2]])
    made = _arranged(product, query, key, value, output, mask, scale, owning, group)
    before = made.mask
    if isinstance(before, Tensor) and before.is_floating_point():
        made.query, made.mask = uniform_rows.added(made.query, before)
        made.source = made.source if made.mask is before else None
    made.mask = Causal(0) if is_causal else made.mask
    made.causal = is_causal or None
    made.door = "scaled_dot_product_attention"
    return made


def _outer(parts: Parts, group: int) -> Parts | None:
    """The parts of an axis but for the last, which are of so many; None where none are."""
    left = list(parts)
    while group > 1 and left and group % left[-1].size == 0:
        group //= left.pop().size
    return tuple(left) if group == 1 else None


def _arranged(
    product: Product, query: Tensor, key: Tensor, value: Tensor, output: Tensor,
    mask: Tensor | None, scale: float, owning: Owning, group: int,
) -> Observed:  # fmt: skip
    order = Order([product.axes])

    def sides() -> Sides:
        shared = [atom for parts in product.batch for atom in order.atoms(parts)]
        return Sides(shared, order.atoms(product.rows), [], order.atoms(product.columns))

    groups = owning.groups(sides, order, product.origins, product.axes)
    of_queries, of_keys = groups.all[:3], [*groups.all[:2], groups.keys]
    outer = _outer(product.batch[1], group)
    if outer is None:  # nothing is known of the axis
        key, value = (one.repeat_interleave(group, dim=1) for one in (key, value))
        outer = product.batch[1]
    asking = [*product.batch, product.rows, None]
    answering = [product.batch[0], outer, product.columns, None]
    key, value = (aligned(one, answering, order, of_keys) for one in (key, value))
    if group > 1:
        key, value = shared_heads(key, value, math.prod(atom.size for atom in groups.heads), True)
    return Observed(
        aligned(query, asking, order, of_queries),
        key,
        value,
        aligned(output, asking, order, of_queries),
        scale,
        mask=None if mask is None else aligned(mask, product.axes, order, groups.all)[..., 0],
        source=mask,
        inferred=groups.inferred,
        batch=groups.batch,
        follows=groups.follows,
    )
