"""What happens to scores between the product that makes them and the values that they weigh.

`Scores` carries what was done to q · kᵀ; `Weights` what its softmax gave. Nothing of N × M is kept
here but what the model itself added or hid.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.following.strides import Axis, Part, Parts, common

COMPARED = 1 << 22  # entries of a mask that is compared with one that came before
FAINT = -9e3  # a score with this added has no weight left; models add −10,000, often beside a bias


class Held:
    """Tensors that are read later: whether they are still what they were.

    Those of inference mode do not count their changes; they are compared with copies.
    """

    __slots__ = ("_copies", "_tensors", "_versions")

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        counted = not any(one.is_inference() for one in tensors)
        self._versions = [one._version for one in tensors] if counted else []
        self._copies = [] if counted else [one.clone() for one in tensors]

    @property
    def has_changed(self) -> bool:
        """Whether one of them was changed in place."""
        if self._versions:
            return self._versions != [one._version for one in self._tensors]
        pairs = zip(self._tensors, self._copies, strict=True)
        return not all(torch.equal(one, copy) for one, copy in pairs)


@dataclass(eq=False)
class Product:
    """Two tensors whose product are scores: left (…, n, d) and right (…, d, m).

    batch, rows, columns: the parts of the product's axes, which are its own, so that queries and
    keys of one text are told apart.
    origins: of which parts of left and right each of them is, by its axis.
    """

    left: Tensor
    right: Tensor
    batch: list[Parts]
    rows: Parts
    columns: Parts
    origins: dict[Axis, tuple[Part | None, Part | None]]
    held: Held
    token: object = field(default_factory=object)  # by which it is known when it is gone

    @property
    def axes(self) -> list[Parts]:
        """Of the product."""
        return [*self.batch, self.rows, self.columns]


def product_of(
    left: Tensor, right: Tensor, of_left: list[Parts | None], of_right: list[Parts | None]
) -> Product:
    """A product of (…, n, d) and (…, d, m), of whose axes this is known."""
    origins: dict[Axis, tuple[Part | None, Part | None]] = {}

    def own(size: int, one: Parts | None, other: Parts | None, is_shared: bool = True) -> Parts:
        given = [one, other] if is_shared else [one or other]
        made = []
        for atom in common(size, given):
            axis = Axis(atom.size)
            first, second = atom.parts if is_shared else (atom.parts[0], None)
            origins[axis] = (first, second) if one is not None or is_shared else (None, first)
            made.append(Part(axis, 1, atom.size, _flag(first, second)))
        return tuple(made)

    leads = zip(left.shape[:-2], of_left, of_right, strict=False)
    return Product(
        left.detach(),
        right.detach(),
        [own(size, one, other) for size, one, other in leads],
        own(left.shape[-2], of_left[-2], None, False),
        own(right.shape[-1], None, of_right[-1], False),
        origins,
        Held(left, right),  # what is detached below Python counts changes of its own
    )


def _flag(*parts: Part | None) -> bool | None:
    """What the parts agree on."""
    told = {part.feature for part in parts if part is not None and not part.axis.is_copy} - {None}
    return told.pop() if len(told) == 1 else None


class Change(NamedTuple):
    """What was done to scores: "scale", "add", "hide" (True = hidden), "fill" (hidden by
    a number that is finite), "keep" (0 hides), "softcap".

    value: a number, or a tensor that broadcasts to the scores as they were viewed then.
    axes: the parts of that view.
    source: the model's own tensor that the value is of, if it is of one as it is.
    """

    kind: str
    value: Any
    axes: list[Parts]
    source: Tensor | None = None
    held: Held | None = None


@dataclass(eq=False, frozen=True)
class Scores:
    """Scores on their way to a softmax.

    product: what they were made by; None where they are no product of two tensors.
    changes: what was done since.
    lost: what was done that has no place in `Causes`; then only their weights can be shown.
    is_raised: whether e was raised to their power, as where a softmax is written out.
    total: where these are sums of rows of other scores, or their logarithms.
    sink: a column beside them.
    """

    product: Product | None
    changes: tuple[Change, ...] = ()
    lost: str = ""
    is_raised: bool = False
    total: Total | None = None
    sink: Sink | None = None

    def then(
        self, kind: str, value: Any, axes: list[Parts], source: Tensor | None = None
    ) -> Scores:
        """The same after one more change."""
        is_small = isinstance(source, Tensor) and source.numel() <= COMPARED
        held = (
            Held(source) if source is not None and (is_small or not source.is_inference()) else None
        )
        made = Change(kind, value, axes, source, held)
        return replace(self, changes=(*self.changes, made))


class Total(NamedTuple):
    """Of which scores sums of rows are, and along which of their axes."""

    of: Scores
    dim: int


class Sink(NamedTuple):
    """A column beside the scores: its tensor (…, n, 1), and the axes of the view it was put to.

    after: how many changes the scores had before.
    is_sure: whether it is a parameter, and no score of a key whose value is added apart.
    """

    value: Tensor
    axes: list[Parts]
    after: int
    is_sure: bool


@dataclass(eq=False)
class Weights:
    """What a softmax gave.

    scores: of what.
    axes: of the softmax's own tensor; dim: along which of them it went.
    dropped: whether some were dropped at random since.
    met: the modules, and the tables, by which it met values.
    altered: what else changed them since; then they are no softmax of the scores.
    is_logarithm: whether it is their logarithm still.
    """

    scores: Scores
    axes: list[Parts]
    dim: int
    dropped: bool = False
    altered: str = ""
    is_logarithm: bool = False
    origins: dict[Axis, tuple[Part | None, Part | None]] = field(default_factory=dict)
    met: list[tuple] = field(default_factory=list)  # shared by all forms of a softmax

    @property
    def over(self) -> Parts:
        """The parts of the keys."""
        return self.axes[self.dim]


class Meeting(NamedTuple):
    """Weights that met values. Axes of value and output that the weights do not have are None."""

    role: Weights
    weights: Tensor
    weights_axes: list[Parts]
    value: Tensor
    value_axes: list[Parts | None]
    output: Tensor
    output_axes: list[Parts | None]


def based(axes: list[Parts | None], sizes: tuple[int, ...]) -> tuple[list[Parts], dict]:
    """Axes of its own for a tensor of scores that no product made, and what they were before."""
    origins: dict[Axis, tuple[Part | None, Part | None]] = {}
    made = []
    for parts, size in zip(axes, sizes, strict=True):
        own = []
        for atom in common(size, [parts]):
            axis = Axis(atom.size)
            origins[axis] = (atom.parts[0], None)
            own.append(Part(axis, 1, atom.size, _flag(atom.parts[0])))
        made.append(tuple(own))
    return made, origins


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether an operation has changed nothing, as a clamp that nothing reaches."""
    return one.shape == other.shape and bool(torch.equal(one, other.to(one.dtype)))


@functools.lru_cache(maxsize=32)
def lowest(dtype: torch.dtype) -> float:
    """Half the least number of a type: what many add in order to hide."""
    return torch.finfo(dtype).min / 2
