"""Who plays which part in attention: scores, weights, weights times values, handed from one
tensor to the next until weights meet values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from heedful.recorder.following import axis_rules, score_changes
from heedful.recorder.following.scores import Meeting, Product, Scores, Weights, based, product_of
from heedful.recorder.following.storages import NOISE, Kept, Kind, Traced, stored
from heedful.recorder.following.strides import Axis, Part, Parts, View, are_of_one, length

SOFTMAXES = score_changes.SOFTMAX | score_changes.LOG_SOFTMAX
HAND_ON = score_changes.HANDS_ON | SOFTMAXES | {"cat", "sum", "logsumexp", "native_dropout"}


class Weighing(NamedTuple):
    """Each value times its weight, whose sum is to come.

    table: the weights, of `table_axes`; value: as it was multiplied, of `axes`; mine: the axes
    that are of the weights.
    """

    weights: Weights
    table: Tensor
    table_axes: list[Parts]
    value: Tensor
    axes: list[Parts]
    mine: set[Axis]


class Listeners(NamedTuple):
    """Whom the roles tell.

    met: of weights that met values.
    softmax: of each softmax of scores.
    chained: of a product of two tensors that meets a third one through no softmax.
    """

    met: Callable[[Meeting], None]
    softmax: Callable[[Weights], None]
    chained: Callable[[Product], None]


class Done(NamedTuple):
    """An operation that was done: what it was given, and what it made."""

    kind: Kind
    arguments: tuple
    keywords: dict[str, Any]
    made: Tensor

    @property
    def by_name(self) -> dict[str, Any]:
        """Its arguments."""
        return self.kind.named(self.arguments) | self.keywords


class Roles:
    """Gives each result its role.

    Args:
        traced: the storages.
        told: who is told.
    """

    def __init__(self, traced: Traced, told: Listeners) -> None:
        self.traced, self.told = traced, told

    def in_place(self, done: Done) -> None:
        """An operation that changes its operand."""
        kept, kind = self.traced.of(done.made), done.kind
        if kind.name in NOISE:
            kept.is_noise = True
        elif kind.name == "copy":
            kept.role = None
            self.traced.copied(done.made, done.arguments[1])
        elif kept.role is not None:
            axes, nbytes = self.traced.axes(done.made), done.made.untyped_storage().nbytes()
            is_whole = done.made.numel() * done.made.element_size() == nbytes
            hands_on = kind.is_pointwise or kind.name in HAND_ON
            if axes is None or not is_whole or not hands_on:
                kept.role = None
            else:
                kept.role = self._after(kept.role, done, 0, axes, None)

    def product(self, done: Done, views: list[View]) -> None:
        """Of queries and keys, of weights and values, or of something else."""
        at = axis_rules.PRODUCTS[done.kind.name]
        left, right = done.arguments[at : at + 2]
        roles = [self.traced.role(one) for one in (left, right)]
        storage = self.traced.result(done.kind, done.arguments, done.keywords, views, done.made)
        kept = self.traced.keep(done.made, storage)
        if any(isinstance(role, Weights) and not role.is_logarithm for role in roles):
            if not all(map(_is_map, roles)):  # a map of a map is no map of one softmax
                self._meet(roles, left, right, done.made)
        elif not any(view.storage.is_parameter for view in views[-2:]):
            product = product_of(left, right, *axis_rules.factors(*views[-2:]))
            if any(isinstance(role, Scores) and role.total is None for role in roles):
                self.told.chained(product)
            kept.storage = stored(product.axes, done.made)
            kept.role = _added_to(Scores(product), done) if at else Scores(product)

    def hand_on(self, done: Done, opened: list[Any], kept: Kept) -> None:
        """Give the result the role that an operand hands on.

        Args:
            done: the operation.
            opened: all operands, lists of them opened.
            kept: of the result.
        """
        operands = opened[:1] if done.kind.name == "native_dropout" else opened
        carried = [(i, one) for i, one in enumerate(operands) if self.traced.role(one) is not None]
        if done.kind.name in SOFTMAXES and not carried:
            kept.role = self._alone(done, kept)
        for i, one in carried:
            role, axes = self.traced.role(one), self.traced.axes(one)
            if axes is None:
                continue
            if isinstance(role, Weighing):
                self._summed(role, done, axes)
            elif _is_widened(role, done, one):
                kept.role = self._weighed(role, one, axes, done, i, kept)
                return
            elif done.kind.is_pointwise or done.kind.name in HAND_ON:
                kept.role = self._after(role, done, i, axes, one)
                if kept.role is not None:
                    self._placed(kept, axes, one, done.made)
                    return

    def _placed(self, kept: Kept, axes: list[Parts], one: Tensor, made: Tensor) -> None:
        """The result's axes, which are those of what had the role before, but for a sink's."""
        if made.shape == one.shape:
            kept.storage = stored(axes, made)
        elif isinstance(kept.role, Scores) and kept.role.total is None:
            wider = [
                parts if length(parts) == size else (Part(Axis(size), 1, size),)
                for parts, size in zip(axes, made.shape, strict=True)
            ]
            kept.storage = stored(wider, made)

    def _after(self, role: Any, done: Done, at: int, axes: list[Parts], given: Any) -> Any:
        if isinstance(role, Weighing):
            return None
        step = score_changes.Operation(
            done.kind.name,
            done.arguments,
            done.keywords,
            at,
            axes,
            given,
            done.made,
            self.traced.is_noise,
            self.traced.role,
            lambda tensor: self.traced.of(tensor).storage.is_parameter,
        )
        if isinstance(role, Weights):
            return score_changes.after_weights(role, step)
        made = score_changes.after_scores(role, step)
        if isinstance(made, Weights):
            self.told.softmax(made)
        elif isinstance(made, Scores) and made.is_raised and not role.is_raised and made.product:
            self.told.chained(made.product)  # until it is divided by its sum
        return made

    def _alone(self, done: Done, kept: Kept) -> Weights | None:
        """A softmax of what is no product of two tensors."""
        made, given = done.made, done.by_name
        if made.ndim < 2 or not made.is_floating_point():
            return None
        axes, origins = based(self.traced.view(given["self"]).axes(), tuple(made.shape))
        kept.storage = stored(axes, made)
        is_logarithm = done.kind.name in score_changes.LOG_SOFTMAX
        return Weights(
            Scores(None), axes, given["dim"] % made.ndim, False, "", is_logarithm, origins
        )

    def _meet(self, roles: list[Any], left: Tensor, right: Tensor, made: Tensor) -> None:
        """Weights in a product: with values, if it adds up along their softmax."""
        sides = ((roles[0], left, right, made), (roles[1], right.mT, left.mT, made.mT))
        for role, weights, value, output in sides:
            if not isinstance(role, Weights) or role.is_logarithm:
                continue
            axes = self.traced.axes(weights)
            if axes is not None and are_of_one(axes[-1], role.over):
                *batch, rows, columns = axes
                of_value: list[Parts | None] = [*batch, columns, None]
                of_output: list[Parts | None] = [*batch, rows, None]
                self.told.met(Meeting(role, weights, axes, value, of_value, output, of_output))
                return

    def _weighed(
        self, role: Weights, weights: Tensor, axes: list[Parts], done: Done, at: int, kept: Kept
    ) -> Weighing | None:
        """Weights times values, before they are added up: axes of the weights, then widths."""
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
        found = Weighing(role, weights.detach(), axes, value, wider, mine)
        if not role.over:  # of one key there is nothing to add up
            self._met_in(found, made, wider)
        return found

    def _summed(self, role: Weighing, done: Done, axes: list[Parts]) -> None:
        """Each value times its weight, added up: over the keys, it is a product."""
        if done.kind.name != "sum" or role.axes != axes:
            return
        [gone, *more] = axis_rules.arguments_of_rule("sum", done.by_name)["dims"]
        if more or not are_of_one(axes[gone], role.weights.over):
            return

        left = [dim for dim in range(len(axes)) if dim != gone]
        output = done.made.reshape([role.value.shape[dim] for dim in left])
        self._met_in(role, output, [axes[dim] for dim in left])

    def _met_in(self, role: Weighing, output: Tensor, axes: list[Parts]) -> None:
        def known(several: list[Parts]) -> list[Parts | None]:
            mine = [all(part.axis in role.mine for part in parts) for parts in several]
            return [parts if own else None for parts, own in zip(several, mine, strict=True)]

        value, of_value = _once(role.value, known(role.axes))
        self.told.met(
            Meeting(role.weights, role.table, role.table_axes, value, of_value, output, known(axes))
        )


def _is_map(role: Any) -> bool:
    return isinstance(role, Weights) and role.scores.product is not None and not role.altered


def _is_widened(role: Any, done: Done, one: Tensor) -> bool:
    """Whether weights were multiplied with something that has more axes."""
    is_product = isinstance(role, Weights) and done.kind.name == "mul"
    return is_product and done.made.numel() > one.numel()


def _added_to(role: Scores, done: Done) -> Scores:
    """Of `baddbmm`: beta · added + alpha · left @ right."""
    alpha, beta = (float(done.keywords.get(name, 1)) for name in ("alpha", "beta"))
    added, axes = done.arguments[0], role.product.axes if role.product else []
    if alpha != 1:
        role = role.then("scale", alpha, axes)
    if not beta:
        return role
    value = added.detach() if beta == 1 else added.detach() * beta
    return role.then("add", value, axes, added if beta == 1 else None)


def _once(value: Tensor, axes: list[Parts | None]) -> tuple[Tensor, list[Parts | None]]:
    """Without the repetitions of axes along which it was expanded."""
    axes = list(axes)
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if size > 1 and stride == 0:
            value, axes[dim] = value.narrow(dim, 0, 1), ()
    return value, axes
