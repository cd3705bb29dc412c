"""Attention that a softmax and two products make, whoever wrote them: as causes, if it has any.

Where the scores are a product of two tensors, scaled, capped, biased and hidden, the call is kept
by its causes and checked like any other. Where they are not, the weights themselves are kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.doors import uniform_rows
from heedful.recorder.following.alignment import Order, aligned
from heedful.recorder.following.scores import FAINT, Meeting, Product, Scores
from heedful.recorder.following.strides import Parts, are_of_one, length
from heedful.recorder.observed import Observed, of_weights
from heedful.recorder.sequences.owners import Groups, Sides
from heedful.recorder.sequences.owning import Owning

SINK = "that the column beside the keys is of no key: it is no parameter of the model's"
DOOR, ALONE = "softmax and a product", "softmax and a product (weights alone)"


def observed(meeting: Meeting, owning: Owning) -> Observed:
    """A call as all doors tell it.

    Raises:
        TypeError: what has no map of queries × keys, or one that cannot be shown truthfully.
    """
    role, scores = meeting.role, meeting.role.scores
    before = scores.sink.axes if scores.sink is not None else role.axes
    keys = before[role.dim]
    meeting = _without_column(meeting, role.over, keys)
    views = [role.axes, before, meeting.weights_axes, *(change.axes for change in scores.changes)]
    order = Order(views if scores.product is None else [scores.product.axes, *views])
    made = _by_causes(meeting, order, keys, before, owning)
    return _alone(meeting, order, keys, before, owning) if made is None else made


def _without_column(meeting: Meeting, over: Parts, keys: Parts) -> Meeting:
    """The keys as they were before a sink stood beside them."""
    if not over:  # one key alone
        return meeting
    found = [parts for parts in meeting.weights_axes if are_of_one(parts, over)]
    if len(found) != 1 or length(found[0]) != length(keys):
        raise TypeError("values that do not meet all keys of the softmax")

    def named(axes: list[Any]) -> list[Any]:
        return [keys if parts and parts == found[0] else parts for parts in axes]

    return meeting._replace(
        weights_axes=named(meeting.weights_axes), value_axes=named(meeting.value_axes)
    )


def _by_causes(
    meeting: Meeting, order: Order, keys: Parts, axes: list[Parts], owning: Owning
) -> Observed | None:
    """None where the scores are no product of two tensors, or something else was done to them."""
    role, scores = meeting.role, meeting.role.scores
    product = scores.product
    if product is None or scores.lost or role.altered:
        return None
    wanted = {part.axis for part in keys}
    # one key has no axis: then it is the side that has none
    if wanted <= {part.axis for part in product.columns} and (wanted or not product.columns):
        asking, answering, query, key = (
            product.rows, product.columns, product.left, product.right.mT,
        )  # fmt: skip
    elif wanted <= {part.axis for part in product.rows} and (wanted or not product.rows):
        asking, answering, query, key = (
            product.columns, product.rows, product.right.mT, product.left,
        )  # fmt: skip
    else:
        raise TypeError("a softmax over another axis than that of the keys")

    def sides() -> Sides:
        of_keys = order.atoms(keys)
        beside = [atom for atom in order.atoms(answering) if atom not in of_keys]
        shared = [atom for parts in product.batch for atom in order.atoms(parts)]
        return Sides(shared, order.atoms(asking), beside, of_keys)

    _check_whole(meeting, product, order)
    groups = owning.groups(sides, order, product.origins, axes)
    changed = _changed(scores, order, groups)
    if changed is None:
        return None
    of_query = aligned(query, [*product.batch, asking, None], order, groups.all[:3])
    of_key = aligned(key, [*product.batch, answering, None], order, [*groups.all[:2], groups.keys])
    seen = _seen(of_query, of_key, groups, order, meeting)
    if changed.factor is not None:
        seen.query = seen.query * changed.factor
    seen.scale, seen.softcap = changed.scale, changed.softcap
    seen.mask, seen.bias = changed.mask, changed.bias
    seen.source = changed.source
    if changed.is_finite:
        _make_even(seen)
    seen.sinks = _sinks(scores, order, groups)
    if scores.sink is not None and not scores.sink.is_sure:
        seen.inferred = {**seen.inferred, "sinks": SINK}
    seen.dropout = 0.5 if role.dropped else 0.0  # how much is not known
    return seen


def _make_even(seen: Observed) -> None:
    """Rows from which all keys are hidden by a number, as the model weighs them."""
    before: Any = seen.mask
    if before.dtype == torch.bool:
        seen.query, seen.mask, seen.bias = uniform_rows.filled(seen.query, before, seen.bias)
    else:
        seen.query, seen.mask = uniform_rows.added(seen.query, before)
    seen.source = seen.source if seen.mask is before else None


def _check_whole(meeting: Meeting, product: Product, order: Order) -> None:
    """Refuse a part of a call, and tensors that were changed before the weights met values.

    Raises:
        TypeError: with what it is.
    """
    met = {atom for parts in meeting.weights_axes for atom in order.atoms(parts)}
    made = {atom for parts in product.axes for atom in order.atoms(parts)}
    if made - met:
        raise TypeError("some of the scores alone meet these values")
    held = [product.held, *(change.held for change in meeting.role.scores.changes)]
    if any(one is not None and one.has_changed for one in held):
        raise TypeError("queries, keys or a mask that were changed in place before their values")


def _seen(query: Tensor, key: Tensor, groups: Groups, order: Order, meeting: Meeting) -> Observed:
    sequences, heads, _, keys = groups.all
    value = aligned(
        meeting.value, meeting.value_axes, order, [sequences, heads, groups.queries, keys]
    )
    if value.shape[2] > 1:
        if value.stride(2):
            raise TypeError("values of each query's own")
        value = value[:, :, :1]
    output = aligned(meeting.output, meeting.output_axes, order, groups.all[:3])
    S, H = output.shape[:2]
    key, value = key.expand(S, -1, -1, -1), value[:, :, 0].expand(S, -1, -1, -1)
    key, value = shared_heads(key, value, H, _may_repeat(meeting, groups))
    return Observed(
        query.expand(S, H, -1, -1), key, value, output, 1.0, door=DOOR, inferred=groups.inferred,
        batch=groups.batch,
        follows=groups.follows,
    )  # fmt: skip


def shared_heads(key: Tensor, value: Tensor, H: int, may_repeat: bool) -> tuple[Tensor, Tensor]:
    """Both with as many heads as the keys are of: once for a group of heads that share them."""
    size = max(key.shape[1], value.shape[1])
    key, value = key.expand(-1, size, -1, -1), value.expand(-1, size, -1, -1)
    if size < H or not may_repeat:
        return key, value
    for group in (G for G in range(H, 1, -1) if H % G == 0):
        one, other = key.unflatten(1, (-1, group)), value.unflatten(1, (-1, group))
        if _is_repeated(one) and _is_repeated(other):
            return one[:, :, 0], other[:, :, 0]
    return key, value


def _may_repeat(meeting: Meeting, groups: Groups) -> bool:
    """Whether keys may be one for several heads: where an axis was followed to its repetition."""
    product = meeting.role.scores.product
    origins = {} if product is None else product.origins
    parts = [part for atom in groups.heads for part in origins.get(atom.axis, (None, None))]
    return any(part is None or part.axis.is_copy for part in parts)


def _is_repeated(groups: Tensor) -> bool:
    """Whether heads of a group (B, G, r, M, d) are one; a look at one place tells most apart."""
    if groups.stride(2) == 0:
        return True
    first_keys = groups[:1, :, :, :1]
    if not bool((first_keys == first_keys[:, :, :1]).all()):
        return False
    return bool((groups == groups[:, :, :1]).all())


class _Changed(NamedTuple):
    """What was done to scores, as `Causes` has it; factor multiplies the queries."""

    scale: float
    factor: Tensor | None
    softcap: float | None
    mask: Any
    bias: Tensor | None
    source: Tensor | None
    is_finite: bool


def _changed(scores: Scores, order: Order, groups: Groups) -> _Changed | None:
    """None where there is no place for it in `Causes`."""
    scale, factor, softcap = 1.0, None, None
    is_finite = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    zeroed: Tensor | None = None
    tables = [one for one in scores.changes if one.kind in ("add", "hide", "fill", "keep")]

    def table(value: Tensor, axes: list[Parts]) -> Tensor:
        return aligned(value, axes, order, groups.all)[..., 0]

    for number, (kind, value, axes, *_) in enumerate(scores.changes):
        is_after = scores.sink is not None and number >= scores.sink.after
        if isinstance(value, Tensor) and not value.ndim:
            value = bool(value) if value.dtype == torch.bool else float(value)
        if isinstance(value, Tensor):
            value = table(value, axes)
        is_of_rows = not isinstance(value, Tensor) or value.shape[-1] == 1
        if is_after and not (kind == "add" and is_of_rows):
            return None
        if kind == "scale":
            if bias is not None:
                bias, tables = bias * value, []
            if not isinstance(value, Tensor):
                if softcap and bias is None:
                    softcap *= value
                else:
                    scale *= value
            elif value.shape[-1] == 1 and softcap is None:
                factor = value if factor is None else factor * value
            else:
                return None
        elif kind == "softcap":
            if bias is not None or mask is not None or softcap is not None:
                return None
            softcap = 1.0
        elif kind == "add":
            if is_of_rows and (is_after or scores.sink is None):
                continue  # the same for all keys, which a softmax does not see
            value = value if isinstance(value, Tensor) else torch.full((1, 1, 1, 1), float(value))
            bias = value if bias is None else bias + value
        elif kind in ("hide", "fill"):
            is_finite = is_finite or kind == "fill"
            mask = ~value if mask is None else mask & ~value
        elif kind == "keep":
            zeroed = value == 0 if zeroed is None else zeroed | (value == 0)
    if zeroed is not None:
        if bias is None or not bool((bias.expand(zeroed.shape)[zeroed] <= FAINT).all()):
            return None
        mask = ~zeroed if mask is None else mask & ~zeroed
        bias = bias.masked_fill(zeroed, 0.0)
    if mask is None:
        mask, bias, is_finite = bias, None, bias is not None
    source = tables[0].source if len(tables) == 1 else None
    return _Changed(scale * (softcap or 1.0), factor, softcap, mask, bias, source, is_finite)


def _sinks(scores: Scores, order: Order, groups: Groups) -> Tensor | None:
    if scores.sink is None:
        return None
    column = aligned(scores.sink.value, scores.sink.axes, order, groups.all)[..., 0, 0]
    S, H, N = (math.prod(atom.size for atom in group) for group in groups.all[:3])
    if column.shape[0] == 1 and column.shape[2] == 1:
        return column[0, :, 0].expand(H)
    return column.expand(S, H, N)


def _alone(
    meeting: Meeting, order: Order, keys: Parts, axes: list[Parts], owning: Owning
) -> Observed:
    """The weights themselves, as they met their values."""
    role = meeting.role
    if not keys:
        raise TypeError("one key alone, whose weight is 1")
    if role.altered.startswith("another softmax"):
        raise TypeError(f"{role.altered} before it meets values: no map of one softmax")
    origins = role.origins if role.scores.product is None else role.scores.product.origins

    def sides() -> Sides:
        of_keys = order.atoms(keys)
        valued = {atom for parts in meeting.value_axes for atom in order.atoms(parts or ())}
        others = [
            atom
            for parts in meeting.weights_axes
            for atom in order.atoms(parts)
            if atom not in of_keys
        ]
        shared = [atom for atom in others if atom in valued]
        return Sides(shared, [atom for atom in others if atom not in valued], [], of_keys)

    given = sides()
    if role.scores.product is None:
        _check_rows(given, order, axes)
    groups = owning.groups(sides, order, origins, axes)
    weights = aligned(meeting.weights, meeting.weights_axes, order, groups.all)[..., 0]
    sizes = [math.prod(atom.size for atom in group) for group in groups.all]
    weights = weights.expand(sizes)
    if role.scores.sink is None and not role.dropped:
        total = weights.detach().float().sum(dim=-1)
        if bool(
            ((total - 1).abs().amax(dim=-1) > 1e-2).any()
            and ((total > 0) & ((total - 1).abs() > 1e-2)).any()
        ):
            raise TypeError(f"weights that were changed after their softmax ({role.altered})")
    if role.dropped:
        raise TypeError("weights of no product that were dropped at random")
    seen = of_weights(weights, ALONE)
    seen.inferred, seen.batch = groups.inferred, groups.batch
    seen.follows = groups.follows
    return seen


def _check_rows(sides: Sides, order: Order, axes: list[Parts]) -> None:
    """Refuse a softmax of something else than what queries make of keys.

    Raises:
        TypeError: a softmax over features, or no queries.
    """
    if any(order.flag(atom) is True for atom in sides.keys):
        raise TypeError("a softmax over features, as of linear attention or a gate")
    if sides.asking and all(order.flag(atom) is True for atom in sides.asking):
        raise TypeError("a softmax over keys for each feature, as of linear attention")
    if not sides.asking:
        raise TypeError("no queries: values are pooled by weights of their own")
