"""What is known of scores on their way from q · kᵀ through a softmax to the values.

A tensor that holds scores has `Scores` as its role: the product that made them, and the changes
since. For `softmax(q @ k.mT / 8 + bias) @ v` they are a `Product` of q and kᵀ, then the changes
("divide", 8) and ("add", bias). The softmax makes them `Weights`, and these in a product with
values a `Meeting`, which is a whole call. No table of N × M is kept here but what the model itself
added or hid. How an operation leads from one to the next is in `score_changes.py`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.following.addresses import Addresses
from heedful.recorder.following.same_numbers import counts_changes
from heedful.recorder.following.strides import Axis, Part, Parts, Storage, View, common, unexpanded
from heedful.recorder.following.writes import state_of
from heedful.recorder.observed import Added

COMPARED = 1 << 22  # a mask of at most so many entries is compared with those that came before
FAINT = -9e3  # a key whose score is this low has no weight; models add −10,000, often plus a bias


class Held:
    """Tells of tensors that are read later whether they still have the same numbers.

    It is for those that count their changes: of others there are copies.
    """

    __slots__ = ("_states", "_tensors")

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        self._states = [state_of(one) for one in tensors]

    @property
    def has_changed(self) -> bool:
        """Whether one of them was changed in place, or its memory was freed."""
        return self._states != [state_of(one) for one in self._tensors]


@dataclass(eq=False)
class Product:
    """Two tensors whose product is scores: left (…, n, d) and right (…, d, m).

    batch, rows, columns: the parts of the product's axes. They are new axes, so that queries and
        keys are told apart where both come from one axis of tokens.
    origins: for each new axis, the parts of left and right that it was made from.
    sums_features: whether it sums over features, as products with parameters made them.
    held: tells whether they have changed since; None of copies of ours, which nothing changes.
    token: stands for the product where its tensors are not to be kept alive.
    module: the name of the module in which it ran.
    """

    left: Tensor
    right: Tensor
    batch: list[Parts]
    rows: Parts
    columns: Parts
    origins: dict[Axis, tuple[Part | None, Part | None]]
    sums_features: bool = False
    held: Held | None = None
    token: object = field(default_factory=object)
    module: str = ""

    @property
    def axes(self) -> list[Parts]:
        """The parts of all axes of the product."""
        return [*self.batch, self.rows, self.columns]


def held_product(
    left: Tensor, right: Tensor, of_left: list[Parts | None], of_right: list[Parts | None]
) -> Product:
    """A product whose tensors are read once its weights meet values; in inference mode copies."""
    if not (counts_changes(left) and counts_changes(right)):
        return product_of(copied(left), copied(right.mT).mT, of_left, of_right)
    product = product_of(left, right, of_left, of_right)
    product.held = Held(left, right)  # what is detached below Python counts changes of its own
    return product


def product_of(
    left: Tensor, right: Tensor, of_left: list[Parts | None], of_right: list[Parts | None]
) -> Product:
    """A product of (…, n, d) and (…, d, m), given the axes of both."""
    origins: dict[Axis, tuple[Part | None, Part | None]] = {}

    def own(size: int, one: Parts | None, other: Parts | None, is_shared: bool = True) -> Parts:
        given = [one, other] if is_shared else [one or other]
        made = []
        for shared in common(size, given):
            axis = Axis(shared.size)
            first, second = shared.parts if is_shared else (shared.parts[0], None)
            origins[axis] = (first, second) if one is not None or is_shared else (None, first)
            made.append(Part(axis, 1, shared.size, _flag(first, second)))
        return tuple(made)

    leads = zip(left.shape[:-2], of_left, of_right, strict=False)
    return Product(
        left.detach(),
        right.detach(),
        [own(size, one, other) for size, one, other in leads],
        own(left.shape[-2], of_left[-2], None, False),
        own(right.shape[-1], None, of_right[-1], False),
        origins,
        _are_features(of_left[-1]) and _are_features(of_right[-2]),
    )


def copied(tensor: Tensor) -> Tensor:
    """A copy with each row of numbers together; what `expand` repeats is there once, as before."""
    once = unexpanded(tensor, range(tensor.ndim))
    made = once.clone(memory_format=torch.contiguous_format)
    return made if once is tensor else made.expand(tensor.shape)


def of_queries(view: View, product: Product) -> View:
    """Weights with the axes that their queries had, before their product had new ones.

    What weights make of values has them too, so that the next layers are followed to the inputs.
    """
    storage, origins = view.storage, product.origins  # and not the product, which holds tensors

    def items() -> list[tuple[Part, int]]:
        return [(_of_query(part, origins), stride) for part, stride in storage.items()]

    return view._replace(storage=Storage(items, storage.depth + 1, storage.nature))


def _of_query(part: Part, origins: dict[Axis, tuple[Part | None, Part | None]]) -> Part:
    """What a part of a product was in the query, or in the key where only that has it."""
    first, second = origins.get(part.axis, (None, None))
    own = first or second
    if own is None:
        return part
    if own.axis.is_copy and second is not None and not second.axis.is_copy:
        own = second  # what is no copy tells more
    feature = part.feature if own.feature is None else own.feature
    return Part(own.axis, own.step * part.step, part.size, feature)


def _are_features(parts: Parts | None) -> bool:
    return bool(parts) and all(part.feature is True for part in parts or ())


def _flag(*parts: Part | None) -> bool | None:
    """Whether the parts are features, where they agree; copies and None have no say."""
    told = {part.feature for part in parts if part is not None and not part.axis.is_copy} - {None}
    return told.pop() if len(told) == 1 else None


class Change(NamedTuple):
    """One step that changed scores.

    kind: "scale", "divide", "add", "softcap" (tanh), "hide" (True is hidden), "fill" (the same,
        hidden by a finite number), "keep" (0 is hidden), "cast" (to a type that has not all of
        their numbers) or "empty" (True was set to zero after the softmax).
    value: a number, or a tensor that broadcasts to the scores as they were viewed then; a copy,
        where the source does not count its changes.
    axes: the parts of that view.
    dtype: of the scores after it.
    source: the model's own tensor, where the value is that tensor, or its opposite.
    number: what hidden scores were replaced by, a number or a tensor as `value`.
    held: tells whether the source has changed since; None where the value is a copy.
    """

    kind: str
    value: Any
    axes: list[Parts]
    dtype: torch.dtype
    source: Tensor | None = None
    number: Any = -math.inf
    held: Held | None = None


@dataclass(eq=False, frozen=True)
class Scores:
    """Scores on their way to a softmax.

    product: the product that made them; None where they are no product of two tensors.
    changes: the steps since.
    lost: the name of an operation that `Causes` cannot express; then only the weights can be shown.
    raised: set where these are exp(scores), as where a softmax is written out: the type in which
        they were taken.
    total: set where these are the sums (or logsumexp) of the rows of other scores.
    sink: a column that was put beside them.
    """

    product: Product | None
    changes: tuple[Change, ...] = ()
    lost: str = ""
    raised: torch.dtype | None = None
    total: Total | None = None
    sink: Sink | None = None

    def then(self, change: Change) -> Scores:
        """The same scores after one more change, whose source is watched or copied from now on."""
        source = change.source
        if source is not None and counts_changes(source):
            change = change._replace(held=Held(source))
        elif source is not None:
            change = change._replace(value=copied(change.value))
        changes = (*self.changes, change)
        return Scores(self.product, changes, self.lost, self.raised, self.total, self.sink)

    @property
    def is_raised(self) -> bool:
        """Whether these are exp(scores)."""
        return self.raised is not None


class Total(NamedTuple):
    """Which scores were summed, and along which of their axes; and what was added to the sum.

    more: None where something else was done to the sum.
    held: tells whether a tensor of the model's that is `more` has changed since.
    """

    of: Scores
    axes: list[Parts]
    dim: int
    more: float | Tensor | None = 0.0
    held: Held | None = None


class Sink(NamedTuple):
    """A column that was put beside the scores, as a learned sink is, or a part of their sum.

    value: its tensor, (…, n, 1); of a number in all sums its logarithm, with as many axes.
    axes: the axes of the scores without it.
    after: how many changes the scores had gone through before.
    is_sure: whether it is a number or a parameter; else it may be the score of a key whose value
        is added apart.
    """

    value: Tensor
    axes: list[Parts]
    after: int
    is_sure: bool


@dataclass(eq=False)
class Weights:
    """The weights that a softmax made.

    scores: what it was taken of.
    axes: the axes of the softmax's own tensor; dim: the one along which it was taken.
    dropped: whether dropout was applied since.
    altered: the name of what else changed them since; then they are no softmax of the scores.
    is_logarithm: whether these are the logarithms of the weights (log_softmax), without exp yet.
    origins: for each axis of scores that no product made, the part that it was before.
    met: the module of each meeting with values; all forms of a softmax share it, and `shown`.
    shown: the maps of those meetings that are calls.
    homes: the addresses of the storages that hold parts of them.
    is_asked: whether something was put to all keys alike, as a single query is in additive scores.
    kinds: the types to which they were rounded, that of the softmax first.
    """

    scores: Scores
    axes: list[Parts]
    dim: int
    dropped: bool = False
    altered: str = ""
    is_logarithm: bool = False
    origins: dict[Axis, tuple[Part | None, Part | None]] = field(default_factory=dict)
    met: list[str] = field(default_factory=list)
    shown: set[tuple] = field(default_factory=set)
    homes: Addresses = field(default_factory=Addresses)
    is_asked: bool = False
    kinds: frozenset[torch.dtype] = frozenset()

    @property
    def over(self) -> Parts:
        """The parts of the axis along which the softmax was taken: the keys."""
        return self.axes[self.dim]


class Meeting(NamedTuple):
    """Weights in a product with values.

    Axes of value and output that the weights do not have, such as the width, are None.
    added: what else is in the output, if the product has added something to it.
    """

    role: Weights
    weights: Tensor
    weights_axes: list[Parts]
    value: Tensor
    value_axes: list[Parts | None]
    output: Tensor
    output_axes: list[Parts | None]
    added: Added | None = None


class Weighing(NamedTuple):
    """Weights times values, element by element; the sum over the keys is still to come.

    weights: the role of the weights; table: their tensor, with `table_axes`.
    value: the values, expanded to the shape of the product, with `axes`.
    mine: the axes of the weights; other axes of the product are the values' own.
    held: tells whether the table or the values have changed since.
    """

    weights: Weights
    table: Tensor
    table_axes: list[Parts]
    value: Tensor
    axes: list[Parts]
    mine: set[Axis]
    held: Held


class Picked(NamedTuple):
    """Scores that were put in another order: the largest, or all of them sorted."""

    product: Product


def based(axes: list[Parts | None], sizes: tuple[int, ...]) -> tuple[list[Parts], dict]:
    """New axes for scores that no product made, and for each the part that it was before."""
    origins: dict[Axis, tuple[Part | None, Part | None]] = {}
    made = []
    for parts, size in zip(axes, sizes, strict=True):
        own = []
        for shared in common(size, [parts]):
            axis = Axis(shared.size)
            origins[axis] = (shared.parts[0], None)
            own.append(Part(axis, 1, shared.size, _flag(shared.parts[0])))
        made.append(tuple(own))
    return made, origins


def is_asked_by_rows(role: Weights) -> bool:
    """Whether a softmax goes over rows, as tokens are, once for each row beside the batch.

    Additive scores are so. Over features it is a classifier's or a router's; with no axis but the
    batch and features beside the rows it expects a place, or pools. Rows that are neither an
    input's nor the same as those that ask may be anything, such as the disparities of two images.
    """
    asking = [parts for dim, parts in enumerate(role.axes) if dim and dim != role.dim]
    rows = [_rows(role, parts) for parts in asking]
    keys = _rows(role, role.over)
    return bool(keys) and any(rows) and (keys in rows or all(axis.given for axis in keys))


def _rows(role: Weights, parts: Parts) -> list[Axis]:
    """The axes that an axis of scores of no product was before; none where they are no rows."""
    origins = [role.origins[part.axis][0] for part in parts]
    rows = [one.axis for one in origins if one is not None and one.feature is False]
    return rows if len(rows) == len(parts) else []


def is_narrowed(given: Tensor | None, made: Tensor) -> bool:
    """Whether the type of a result has not all numbers that the type of its operand has."""
    if given is None or given.dtype == made.dtype:
        return False
    return torch.promote_types(given.dtype, made.dtype) != made.dtype


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether an operation changed no number, as a clamp whose bounds no number reaches."""
    return one.shape == other.shape and bool(torch.equal(one, other.to(one.dtype)))


@functools.lru_cache(maxsize=32)
def lowest(dtype: torch.dtype) -> float:
    """Half the lowest number of a type: a score below it is hidden, as many models hide keys."""
    return torch.finfo(dtype).min / 2
