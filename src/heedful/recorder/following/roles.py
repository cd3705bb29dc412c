"""Gives tensors their role in attention, and hands it on until weights meet values.

A product of two tensors, neither of which is a parameter, may be scores: its storage gets the role
`Scores`. Each operation on a tensor with a role hands it on to its result (`score_changes.py`):
scores to scores, through a softmax to `Weights`. A product of weights with anything else, along the
axis of their softmax, is a `Meeting`: a call of attention, of which `Listeners.met` is told.

For `softmax(q @ k.mT) @ v` these are: `product` (scores), `other` (weights), `product` (meeting).
`(weights[..., None] * v).sum(-2)` is followed too: the product element by element is a `Weighing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, is_complex

from heedful.recorder.following import axis_rules, feature_rules, in_place, score_changes
from heedful.recorder.following.operation_kinds import Done
from heedful.recorder.following.score_step import Operation
from heedful.recorder.following.scores import (
    Change,
    Held,
    Meeting,
    Picked,
    Product,
    Scores,
    Weighing,
    Weights,
    based,
    held_product,
    is_asked_by_rows,
    of_queries,
)
from heedful.recorder.following.storages import Kept, Traced, stored
from heedful.recorder.following.strides import (
    Axis,
    Part,
    Parts,
    View,
    are_of_one,
    length,
    unexpanded,
)
from heedful.recorder.observed import Added

CHOOSES = {"argmax", "max"}
PICKS = {"topk", "sort"}  # a softmax of what they give may follow


class Listeners(NamedTuple):
    """Functions that `Roles` calls with what it finds.

    met: with each meeting of weights and values.
    product: with each product of two tensors that may be scores.
    softmax: with the weights of each softmax of scores, or of anything else over rows for rows.
    chained: with scores that meet a third tensor in a product without any softmax, and with the
        product that is to be forgotten if a softmax follows yet.
    chosen: with the product of scores of which the largest are looked for.
    """

    met: Callable[[Meeting], None]
    product: Callable[[Product], None]
    softmax: Callable[[Weights], None]
    chained: Callable[[Scores, Product], None]
    chosen: Callable[[Product], None]


class Roles:
    """Gives the result of each operation its role.

    Args:
        traced: the storages of the pass.
        told: the functions to call with what is found.
    """

    def __init__(self, traced: Traced, told: Listeners) -> None:
        self.traced, self.told = traced, told

    def follow(self, done: Done) -> None:
        """Follow an operation, whatever it is."""
        if done.kind.is_in_place:
            in_place.follow(done, self.traced, self._after)
        elif done.kind.name in axis_rules.PRODUCTS:
            self.product(done)
        else:
            self.other(done)

    def product(self, done: Done) -> None:
        """Follow a product: of queries and keys, of weights and values, or of something else."""
        at = axis_rules.PRODUCTS[done.kind.name]
        left, right = factors = done.arguments[at : at + 2]
        operands = self.traced.operands(factors)
        if len(operands) < 2:  # a weight of a class of its own
            self.traced.of(done.made)
            return
        roles = [one.kept.role for one in operands]
        views = [one.view for one in operands]
        is_weighed = _weighs(roles[0]) or _weighs(roles[1])
        if (
            is_weighed
            or views[0].storage.nature.is_parameter
            or views[-1].storage.nature.is_parameter
        ):
            if is_weighed:
                views = [_of_queries(*one) for one in zip(views, roles, strict=True)]
            self._noted(done, views)
            if is_weighed and not all(map(_is_map, roles)):  # two maps make no map of one softmax
                self._meet(roles, left, right, done)
            return
        for role in roles:
            if isinstance(role, Weights) and role.scores.product:  # logarithms that meet values
                self.told.softmax(role)
        product = held_product(left, right, *feature_rules.factors(*views))
        self.told.product(product)
        before = [role for role in roles if isinstance(role, Scores) and role.total is None]
        if before:
            self.told.chained(before[0], product)
        kept = self.traced.keep(done.made, stored(product.axes, done.made))
        scores = Scores(
            product, lost="a product of complex numbers" if is_complex(done.made) else ""
        )
        kept.role = _added_to(scores, done) if at else scores

    def other(self, done: Done) -> None:
        """Follow any other operation: its result gets the role that one of its operands hands on.

        A softmax makes weights of whatever it is taken of.
        """
        operands = self.traced.operands(done.arguments)
        views, carried = [], []
        for one in operands:
            views.append(one.view)
            if one.kept.role is not None:
                carried.append(one)
        kept = self._noted(done, views)
        if len(carried) > 1:  # scores beside a threshold that was picked of them are scores
            carried.sort(key=lambda one: isinstance(one.kept.role, Picked))
        if not carried and done.kind.name in score_changes.SOFTMAXES:
            kept.role = self._alone(done, kept)
        for one in carried:
            role, axes = one.kept.role, one.view.known()
            if done.kind.name in CHOOSES and isinstance(role, Scores) and role.product:
                self.told.chosen(role.product)
            if isinstance(role, Picked):
                kept.role = self._of_picked(role, done, kept)
                return
            if done.kind.name in PICKS and isinstance(role, Scores) and role.product:
                kept.role = Picked(role.product)
                return
            if axes is None:
                continue
            if isinstance(role, Weighing):
                self._summed(role, done, axes)
            elif _is_widened(role, done, one.tensor):
                kept.role = self._weighed(role, one.tensor, axes, done, one.at, kept)
                return
            elif done.kind.is_pointwise or done.kind.name in score_changes.HAND_ON:
                kept.role = self._after(role, done, one.at, axes, one.tensor)
                if kept.role is not None:
                    # else it stands in the storage of the first one just as that does
                    if one is not operands[0] or kept.storage is not one.view.storage:
                        self._placed(kept, axes, one.tensor, done.made)
                    return

    def _of_picked(self, role: Picked, done: Done, kept: Kept) -> Any:
        """The role of what is made of picked scores; a softmax of them is told of as one of all."""
        if done.kind.name not in score_changes.SOFTMAXES:
            is_still = done.kind.is_pointwise or done.kind.name in score_changes.HANDS_ON
            return role if is_still else None
        weights = self._alone(done, kept)
        if weights is not None:
            self.told.softmax(weights)
        return weights

    def _noted(self, done: Done, views: list[View]) -> Kept:
        """Note the storage of an operation's result, which has no role yet."""
        storage = self.traced.result(done.kind, done.arguments, done.keywords, views, done.made)
        return self.traced.keep(done.made, storage)

    def _placed(self, kept: Kept, axes: list[Parts], one: Tensor, made: Tensor) -> None:
        """Give the result the axes of the operand that had the role, but for a sink's column."""
        if made.shape == one.shape:
            kept.storage = stored(axes, made)
        elif isinstance(kept.role, Scores) and kept.role.total is None:
            wider = [
                parts if length(parts) == size else (Part(Axis(size), 1, size),)
                for parts, size in zip(axes, made.shape, strict=True)
            ]
            kept.storage = stored(wider, made)

    def _after(self, role: Any, done: Done, at: int, axes: list[Parts], given: Any) -> Any:
        """The role after an operation whose argument number `at` had it; tells the listeners."""
        if isinstance(role, Picked):
            return role
        if isinstance(role, Weighing):
            return None
        step = Operation(
            done.kind.name,
            done.arguments,
            done.keywords,
            at,
            axes,
            given,
            done.made,
            self.traced.is_noise,
            self.traced.role,
            lambda tensor: self.traced.of(tensor).storage.nature.is_parameter,
        )
        if isinstance(role, Weights):
            weights = score_changes.after_weights(role, step)
            if weights is not None and role.is_logarithm:
                self._tell(weights)
            return weights
        made = score_changes.after_scores(role, step)
        if isinstance(made, Weights):
            made.kinds = frozenset({done.made.dtype})
            self._tell(made)
        elif isinstance(made, Scores) and made.is_raised and not role.is_raised and made.product:
            self.told.chained(made, made.product)  # until it is divided by its sum
        return made

    def _alone(self, done: Done, kept: Kept) -> Weights | None:
        """The weights of a softmax whose operand no product was seen to make."""
        made, given = done.made, done.by_name
        if made.ndim < 2 or not made.is_floating_point():
            return None
        view, dim = self.traced.view(given["self"]), given["dim"] % made.ndim
        axes, origins = based(view.axes(), tuple(made.shape))
        is_asked = view.strides[dim] * view.unit in view.storage.nature.asked
        kept.storage = stored(axes, made)
        is_logarithm = done.kind.name in score_changes.LOG_SOFTMAX
        kinds = frozenset({made.dtype})
        weights = Weights(
            Scores(None),
            axes,
            dim,
            False,
            "",
            is_logarithm,
            origins,
            is_asked=is_asked,
            kinds=kinds,
        )
        self._tell(weights)
        return weights

    def _tell(self, weights: Weights) -> None:
        """Tell of weights that may meet values; their logarithms alone are what a loss takes."""
        if not weights.is_logarithm and (weights.scores.product or is_asked_by_rows(weights)):
            self.told.softmax(weights)

    def _meet(self, roles: list[Any], left: Tensor, right: Tensor, done: Done) -> None:
        """Tell of weights in a product, if it sums over the axis of their softmax: with values."""
        for role, is_left in zip(roles, (True, False), strict=True):
            if not _weighs(role):
                continue
            weights = left if is_left else right.mT
            axes = self.traced.axes(weights)
            if axes is None or not are_of_one(axes[-1], role.over):
                continue
            value, output, added = right, done.made, _added_by(done)
            if not is_left:  # values.mT @ weights.mT
                value, output = left.mT, output.mT
                added = added and added._replace(table=added.table.mT)
            *batch, rows, columns = axes
            of_value: list[Parts | None] = [*batch, columns, None]
            of_output: list[Parts | None] = [*batch, rows, None]
            self.told.met(Meeting(role, weights, axes, value, of_value, output, of_output, added))
            return

    def _weighed(
        self, role: Weights, weights: Tensor, axes: list[Parts], done: Done, at: int, kept: Kept
    ) -> Weighing | None:
        """The role of weights times values element by element, before the sum over the keys."""
        value, made = done.arguments[1 - at], done.made
        if not axis_rules.is_tensor(value):
            return None
        own = [()] * (made.ndim - len(axes)) + list(axes)
        wider: list[Parts] = [
            parts if parts or size == 1 else (Part(Axis(size), 1, size),)
            for parts, size in zip(own, made.shape, strict=True)
        ]
        kept.storage = stored(wider, made)
        mine = {part.axis for parts in axes for part in parts}
        value = value.detach().expand(made.shape)
        table = weights.detach()
        found = Weighing(role, table, axes, value, wider, mine, Held(table, value))
        if not role.over:  # with one key alone there is no sum to come
            self._met_in(found, made, wider)
        return found

    def _summed(self, role: Weighing, done: Done, axes: list[Parts]) -> None:
        """Tell of a `Weighing` that was summed over the keys, which is a product with values."""
        if done.kind.name != "sum" or role.axes != axes or role.held.has_changed:
            return
        [gone, *more] = axis_rules.arguments_of_rule("sum", done.by_name)["dims"]
        if more or not are_of_one(axes[gone], role.weights.over):
            return

        left = [dim for dim in range(len(axes)) if dim != gone]
        output = done.made.reshape([role.value.shape[dim] for dim in left])
        self._met_in(role, output, [axes[dim] for dim in left])

    def _met_in(self, role: Weighing, output: Tensor, axes: list[Parts]) -> None:
        """Tell of the meeting that a `Weighing` is; `axes` are those of the output."""

        def known(several: list[Parts]) -> list[Parts | None]:
            mine = [all(part.axis in role.mine for part in parts) for parts in several]
            return [parts if own else None for parts, own in zip(several, mine, strict=True)]

        value = unexpanded(role.value, range(role.value.ndim))
        is_one = [size == 1 for size in value.shape]
        of_value = [() if one else p for one, p in zip(is_one, known(role.axes), strict=True)]
        self.told.met(
            Meeting(role.weights, role.table, role.table_axes, value, of_value, output, known(axes))
        )


def _weighs(role: Any) -> bool:
    """Whether a role is weights, and not their logarithms."""
    return isinstance(role, Weights) and not role.is_logarithm


def _of_queries(view: View, role: Any) -> View:
    """Weights of a product with the axes of their queries; any other operand as it is."""
    product = role.scores.product if _weighs(role) else None
    return view if product is None else of_queries(view, product)


def _is_map(role: Any) -> bool:
    """Whether a role is the weights of queries and keys, as their softmax made them."""
    return isinstance(role, Weights) and role.scores.product is not None and not role.altered


def _is_widened(role: Any, done: Done, one: Tensor) -> bool:
    """Whether weights were multiplied with a tensor that has more axes, as values have."""
    is_product = isinstance(role, Weights) and done.kind.name == "mul"
    return is_product and done.made.numel() > one.numel()


def _added_by(done: Done) -> Added | None:
    """What `addmm` or `baddbmm` has added to a product; None for a product alone."""
    if not axis_rules.PRODUCTS[done.kind.name]:
        return None
    times, share = (float(done.keywords.get(name, 1)) for name in ("alpha", "beta"))
    table = done.arguments[0] if share else done.made.new_zeros(())  # what is not added may be NaN
    return Added(table.detach().expand(done.made.shape), share, times)


def _added_to(role: Scores, done: Done) -> Scores:
    """The scores that `addmm` or `baddbmm` makes: beta · added + alpha · left @ right."""
    alpha, beta = (float(done.keywords.get(name, 1)) for name in ("alpha", "beta"))
    added, axes = done.arguments[0], role.product.axes if role.product else []
    dtype = done.made.dtype
    if alpha != 1:
        role = role.then(Change("scale", alpha, axes, dtype))
    if not beta:
        return role
    value = added.detach() if beta == 1 else added.detach() * beta
    return role.then(Change("add", value, axes, dtype, added if beta == 1 else None))
