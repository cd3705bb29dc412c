"""Makes a call of a `Meeting`: attention that somebody wrote as a softmax between two products.

Where the scores are a product of two tensors, scaled, capped, biased and masked, the call has query
and key, and is checked like any other. Where they are not, it has the weights alone. What has no
map of queries × keys, such as linear attention, is refused.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.doors import dead_rows, room_in_types, weights_apart
from heedful.recorder.doors.score_causes import (
    ScoreCauses,
    causes_of,
    rounding_types,
    sinks_of,
)
from heedful.recorder.following.alignment import Order, aligned
from heedful.recorder.following.scores import Meeting, Product, Weights, copied
from heedful.recorder.following.strides import Parts, are_of_one, length, widened
from heedful.recorder.observed import Observed, of_weights
from heedful.recorder.sequences.axis_owners import Groups, Sides
from heedful.recorder.sequences.text_order import Origins
from heedful.recorder.sequences.told_or_followed import Owning

SINK = (
    "that the extra column of scores, or what was added to their sum, is no key's: "
    "it is no parameter of the model"
)
DOOR, ALONE = "softmax and a product", "softmax and a product (weights alone)"


def observed(meeting: Meeting, owning: Owning) -> Observed:
    """The call that a meeting of weights and values is, in the form that all doors share.

    Raises:
        TypeError: it has no map of queries × keys, or one that cannot be shown truthfully.
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
    """The meeting with the axis of the keys as it was before a sink's column stood beside them."""
    if not over:  # with one key alone there is no such axis
        return meeting
    found = [parts for parts in meeting.weights_axes if are_of_one(parts, over)]
    if len(found) != 1 or length(found[0]) != length(keys):
        raise TypeError("values that do not meet all keys of the softmax")
    if found[0] == keys:  # no column stood beside them
        return meeting

    def named(axes: list[Any]) -> list[Any]:
        return [keys if parts and parts == found[0] else parts for parts in axes]

    return meeting._replace(
        weights_axes=named(meeting.weights_axes), value_axes=named(meeting.value_axes)
    )


class _Ends(NamedTuple):
    """Which side of a product asks and which answers: of q @ k.mT the left, of k @ q.mT the right.

    asking, answering: the axes of queries and of keys; query, key: their tensors, (…, n, d).
    origins: for each axis of the scores, the parts of query and key that it was made from.
    """

    asking: Parts
    answering: Parts
    query: Tensor
    key: Tensor
    origins: Origins


def _ends(product: Product, keys: Parts) -> _Ends:
    """The sides of a product, of which the one with the axis of the softmax has the keys."""
    left, right = product.left, product.right.mT
    if _has(product.columns, keys):
        return _Ends(product.rows, product.columns, left, right, product.origins)
    if _has(product.rows, keys):
        turned = {axis: (second, first) for axis, (first, second) in product.origins.items()}
        return _Ends(product.columns, product.rows, right, left, turned)
    raise TypeError("a softmax over another axis than that of the keys")


def _has(side: Parts, keys: Parts) -> bool:
    """Whether the keys are of this side; one key alone has no axis, and nor has its side."""
    return {part.axis for part in keys} <= {part.axis for part in side} and bool(keys) == bool(side)


def _by_causes(
    meeting: Meeting, order: Order, keys: Parts, axes: list[Parts], owning: Owning
) -> Observed | None:
    """The call with its queries and keys.

    None where the scores are no product of two tensors, or `Causes` cannot express what was done to
    them.
    """
    role, scores = meeting.role, meeting.role.scores
    product = scores.product
    if product is None or scores.lost or role.altered:
        return None
    if not (product.left.is_floating_point() and product.right.is_floating_point()):
        return None  # products of whole numbers have digits that no type of `Causes` has room for
    held = [product.held, *(change.held for change in scores.changes)]
    if any(one is not None and one.has_changed for one in held):
        raise TypeError("queries, keys or a mask that were changed in place before their values")
    ends = _ends(product, keys)

    def sides() -> Sides:
        of_keys = order.atoms(keys)
        beside = [atom for atom in order.atoms(ends.answering) if atom not in of_keys]
        shared = [atom for parts in product.batch for atom in order.atoms(parts)]
        return Sides(shared, order.atoms(ends.asking), beside, of_keys, product.sums_features)

    _check_whole(meeting, product.axes, order, are_apart=False)
    kinds = {change.kind for change in scores.changes}
    if "keep" in kinds and not bool(ends.query.isfinite().all() & ends.key.isfinite().all()):
        return None  # what is no number is none times 0 either
    groups = owning.groups(sides, order, ends.origins, axes)
    causes = causes_of(scores, order, groups)
    if causes is None:
        return None
    if product.held is not None:  # before they are looked at: a copy's rows stand together
        ends = ends._replace(query=copied(ends.query), key=copied(ends.key))
    if room_in_types.may_lack(ends.query, ends.key, scores.changes):
        return None
    if any(room_in_types.is_beyond(one, ends.query) for one in (causes.mask, causes.bias)):
        return None
    of_queries, of_keys = groups.all[:3], [*groups.all[:2], groups.keys]
    query = aligned(ends.query, [*product.batch, ends.asking, None], order, of_queries)
    key = aligned(ends.key, [*product.batch, ends.answering, None], order, of_keys)
    seen = _seen(query, key, groups, order, meeting)
    seen.are_copies = True
    seen.sinks = sinks_of(scores, order, groups)
    if not _put(seen, causes):
        return None
    is_nan = _rows_of_nan(meeting, order, groups, keys)
    if is_nan is not None and weights_apart.shows_numbers_for_nan(is_nan, seen):
        return None
    if kinds & {"fill", "keep"}:
        weights = aligned(meeting.weights, meeting.weights_axes, order, groups.all)[..., 0]
        if weights_apart.is_hidden_key_weighed(weights, seen.mask):
            return None
    if scores.sink is not None and not scores.sink.is_sure:
        seen.inferred = {**seen.inferred, "sinks": SINK}
    seen.dropout = 0.5 if role.dropped else 0.0  # how much is not known
    return seen


def _put(seen: Observed, causes: ScoreCauses) -> bool:
    """Add to a call what was done to its scores; False where some row cannot be shown so."""
    product = seen.query
    if causes.factor is not None:
        seen.query = room_in_types.times(seen.query, causes.factor)
    seen.scale, seen.softcap = causes.scale, causes.softcap
    seen.mask, seen.bias, seen.source = causes.mask, causes.bias, causes.source
    seen.is_known_by_numbers = causes.source is None
    seen.added_to_scores = causes.largest_added
    if causes.steps and dead_rows.settle(seen, causes.steps, product) is not None:
        return False
    if causes.emptied is not None:
        _empty(seen, causes.emptied)
    return True


def _rows_of_nan(meeting: Meeting, order: Order, groups: Groups, keys: Parts) -> Tensor | None:
    """Which rows of the model's own map are NaN, (S, H, N); None where none is.

    A softmax makes all of a row NaN, so that the first key tells, unless some weights were set to
    zero after it.
    """
    output = meeting.output  # NaN times any value is NaN
    if meeting.added is None and output.numel() and math.isfinite(float(output.sum())):
        return None
    weights, axes = meeting.weights, meeting.weights_axes
    is_emptied = any(change.kind == "empty" for change in meeting.role.scores.changes)
    does_first_tell = keys in axes and not is_emptied
    looked_at = weights.select(axes.index(keys), 0) if does_first_tell else weights
    if not bool(looked_at.sum().isnan()):
        return None
    whole = aligned(weights, axes, order, groups.all)[..., 0]
    return whole[..., :1].isnan()[..., 0] if does_first_tell else whole.isnan().any(dim=-1)


def _empty(seen: Observed, emptied: Tensor) -> None:
    """Hide the keys of weights that were set to zero, also where all keys had had the same."""
    before: Any = seen.mask
    are_numbers = bool(seen.are_keys_numbers.all())  # else what is added hides nothing
    if before is not None and emptied.shape[-1] == 1 and are_numbers:
        sees = before if before.dtype == torch.bool else before != -torch.inf
        emptied = emptied & sees.any(dim=-1, keepdim=True)  # of the others nothing is to be hidden
    if not bool(emptied.any()):
        return
    if before is None or before.dtype == torch.bool:
        seen.mask = ~emptied if before is None else before & ~emptied
    elif are_numbers:
        seen.mask = before.masked_fill(emptied, -torch.inf)
    else:  # there is no other bias where a mask is added
        seen.mask, seen.bias = ~emptied, before
    seen.source = None


def _check_whole(meeting: Meeting, axes: list[Parts], order: Order, *, are_apart: bool) -> None:
    """Refuse a meeting with a part of the scores, which had these axes.

    are_apart: whether one head or one query alone, which has no axis, is shown as a call of its
        own. Several would be numbered from 0, whichever they are.

    Raises:
        TypeError: it is one.
    """
    if meeting.weights_axes == axes:
        return
    met = {atom for parts in meeting.weights_axes for atom in order.atoms(parts)}
    left = {atom for parts in axes for atom in order.atoms(parts)} - met
    if are_apart:
        sliced = {atom.axis for atom in met}
        left = {atom for atom in left if atom.axis in sliced}
    if left:
        raise TypeError("some of the scores alone meet these values")


def _seen(query: Tensor, key: Tensor, groups: Groups, order: Order, meeting: Meeting) -> Observed:
    """The call of aligned queries and keys, before its scale, mask and bias are put in."""
    sequences, heads, _, keys = groups.all
    value = aligned(
        meeting.value, meeting.value_axes, order, [sequences, heads, groups.queries, keys]
    )
    if value.shape[2] > 1:
        if value.stride(2):
            raise TypeError("values of each query's own")
        value = value[:, :, :1]
    output = aligned(meeting.output, meeting.output_axes, order, groups.all[:3])
    added, changes = meeting.added, meeting.role.scores.changes
    if added is not None:
        table = aligned(added.table, meeting.output_axes, order, groups.all[:3])
        added = added._replace(table=table)
    S, H = output.shape[:2]
    key, value = widened(key, S, -1, -1, -1), widened(value[:, :, 0], S, -1, -1, -1)
    key, value = shared_heads(key, value, H, _may_repeat(meeting, groups))
    return Observed(
        widened(query, S, H, -1, -1),
        key,
        value,
        output,
        1.0,
        door=DOOR,
        added=added,
        inferred=groups.inferred,
        batch=groups.batch,
        follows=groups.follows,
        moved=groups.moved,
        is_of_two=groups.is_of_two,
        followed=groups.followed,
        are_windows=groups.are_windows,
        is_by_hand=True,
        kinds=meeting.role.kinds.union(one.dtype for one in changes),
        rounded_to=rounding_types(changes, query.dtype),
    )


def shared_heads(key: Tensor, value: Tensor, H: int, may_repeat: bool) -> tuple[Tensor, Tensor]:
    """Keys and values with G heads, once for each group of query heads that share them.

    may_repeat: whether repeated heads are to be looked for, as `repeat_interleave` leaves them.
    """
    size = max(key.shape[1], value.shape[1])
    key, value = widened(key, -1, size, -1, -1), widened(value, -1, size, -1, -1)
    if size < H or not may_repeat:
        return key, value
    for group in (G for G in range(H, 1, -1) if H % G == 0):
        one, other = key.unflatten(1, (-1, group)), value.unflatten(1, (-1, group))
        if _is_repeated(one) and _is_repeated(other):
            return one[:, :, 0], other[:, :, 0]
    return key, value


def _may_repeat(meeting: Meeting, groups: Groups) -> bool:
    """Whether heads may share keys: an axis of the heads is a copy, or was not followed."""
    product = meeting.role.scores.product
    origins = {} if product is None else product.origins
    parts = [part for atom in groups.heads for part in origins.get(atom.axis, (None, None))]
    return any(part is None or part.axis.is_copy for part in parts)


def _is_repeated(groups: Tensor) -> bool:
    """Whether the r heads of each group, (B, G, r, M, d), are all equal."""
    if groups.stride(2) == 0:
        return True
    # a look at one key tells most apart
    first_keys = groups[:1, :, :, :1]
    if not bool((first_keys == first_keys[:, :, :1]).all()):
        return False
    return bool((groups == groups[:, :, :1]).all())


def _alone(
    meeting: Meeting, order: Order, keys: Parts, axes: list[Parts], owning: Owning
) -> Observed:
    """The call with its weights alone, as they met their values.

    Raises:
        TypeError: the weights are no map of one softmax, or dropout has changed them.
    """
    role = meeting.role
    if not keys:
        raise TypeError("one key alone, or none: its weight can only be 1")
    if role.altered.startswith("another softmax"):
        raise TypeError(f"{role.altered} before it meets values: no map of one softmax")
    _check_whole(meeting, axes, order, are_apart=True)
    origins = _origins(role, keys)

    def sides() -> Sides:
        return _sides_of_weights(meeting, order, keys)

    if role.scores.product is None:
        _check_rows(sides(), order, role.is_asked)
    groups = owning.groups(sides, order, origins, axes)
    sizes = [math.prod(atom.size for atom in group) for group in groups.all]
    weights = aligned(meeting.weights, meeting.weights_axes, order, groups.all)[..., 0]
    weights = weights.expand(sizes)
    weights = weights.masked_fill(weights.isnan().any(dim=-1, keepdim=True), 0.0)  # no map
    if role.scores.sink is None and not role.dropped:
        _check_sums(weights, role.altered)
    if role.dropped:
        raise TypeError("weights of no product that were dropped at random")
    seen = of_weights(weights, ALONE, role.kinds)
    seen.inferred, seen.batch = groups.inferred, groups.batch
    seen.follows, seen.moved = groups.follows, groups.moved
    seen.followed, seen.are_windows = groups.followed, groups.are_windows
    return seen


def _origins(role: Weights, keys: Parts) -> Origins:
    """The parts that the axes of the scores were made from, those of the query first."""
    product = role.scores.product
    if product is None:
        return role.origins
    try:
        return _ends(product, keys).origins
    except TypeError:  # scores of an axis that no side of the product has
        return product.origins


def _sides_of_weights(meeting: Meeting, order: Order, keys: Parts) -> Sides:
    """Sides of weights of which no queries are known: what the values do not have asks."""
    of_keys = order.atoms(keys)
    valued = {atom for parts in meeting.value_axes for atom in order.atoms(parts or ())}
    others = [
        atom for parts in meeting.weights_axes for atom in order.atoms(parts) if atom not in of_keys
    ]
    shared = [atom for atom in others if atom in valued]
    return Sides(shared, [atom for atom in others if atom not in valued], [], of_keys)


def _check_sums(weights: Tensor, altered: str) -> None:
    """Refuse weights with rows that sum to neither one nor zero.

    Raises:
        TypeError: with the operation that has changed them.
    """
    total = weights.detach().float().sum(dim=-1)
    is_off = (total - 1).abs() > 1e-2
    if bool((is_off & (total > 0)).any()):
        how = f"were changed after their softmax ({altered})" if altered else "do not sum to one"
        raise TypeError(f"weights that {how}")


def _check_rows(sides: Sides, order: Order, is_asked: bool) -> None:
    """Refuse a softmax of anything but scores of queries and keys.

    Args:
        sides: the atoms of the weights.
        order: of the call.
        is_asked: whether one query asked all keys, which has no axis.

    Raises:
        TypeError: the softmax goes over features, or there are no queries.
    """
    if any(order.flag(atom) is True for atom in sides.keys):
        raise TypeError("a softmax over features, as of linear attention or a gate")
    if sides.asking and all(order.flag(atom) is True for atom in sides.asking):
        raise TypeError(
            "a softmax over keys for each feature, as of linear attention, or of learned queries "
            "that no layer projects"
        )
    if not (sides.asking or is_asked):
        raise TypeError("no queries: values are pooled by weights of their own")
