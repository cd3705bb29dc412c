"""The steps of a tape: operations between two products, which can be run again.

A tape begins with the product of queries and keys. Each step is one later operation on its result:
the function, its other arguments, and the shape and strides of its result. Run again from copies of
the two factors, the steps give the model's own weights to the last bit; nothing has to be known
about scales, masks or softmaxes. A step stands for a whole storage, a `View` for a part of it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from heedful.errors import RunError
from heedful.recorder.doors import without_mode

OUTSIDE = -1  # the index of a number that is no cell of the product, such as a sink's
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
FLEX = ("query", "key", "value", "score_mod", "block_mask", "scale")  # arguments of flex attention
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # and where their two factors are
EXACT, ROUGH = 1e-4, 2e-2  # by so much a row of weights may exceed 1, in 32 and in 16 bits
SMALL = 1 << 12  # numbers of a tensor that is copied rather than read again
# Operations whose results have the numbers of their input in other places
MOVES = {
    "cat", "constant_pad_nd", "flip", "gather", "index", "index_select", "repeat", "roll", "sort",
    "take_along_dim", "topk",
}  # fmt: skip


class Kind(NamedTuple):
    """An operation by its schema: the names of its arguments, which one it writes into (or None),
    and whether it consists of other operations."""

    name: str
    names: tuple[str, ...]
    is_view: bool
    writes: int | None
    is_composite: bool


@functools.cache
def kind_of(function: Any) -> Kind:
    """The kind of an operation."""
    if not isinstance(function, torch._ops.OpOverload):  # such as flex attention
        return Kind(str(function), FLEX, False, None, False)
    schema, name = function._schema, name_of(function)
    home = schema.name.split("::")[0]
    name = name if home == "aten" else f"{home}::{name}"
    written = (
        i for i, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write
    )
    writes = next(written, None)
    aliases = any(one.alias_info for one in schema.returns)
    is_view = (aliases and writes is None) or name in ("_unsafe_view", "_reshape_alias")
    names = tuple(one.name for one in schema.arguments)
    is_composite = without_mode.has_kernel(function, COMPOSITE)
    return Kind(name, names, is_view and not is_composite, writes, is_composite)


class Held:
    """A tensor that a step reads again.

    It is copied if torch does not count its changes, if it needs a gradient, or if it is small;
    with `copies`, in any case.
    """

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor, copies: bool = False) -> None:
        counts = not (tensor.is_inference() or torch.is_inference_mode_enabled())
        copies = copies or not counts or tensor.requires_grad or tensor.numel() <= SMALL
        self.tensor = tensor.detach().clone() if copies else tensor
        self.version = None if copies else tensor._version

    def value(self) -> Tensor:
        """The tensor; `RunError` where it was changed in place since."""
        if self.version is not None and self.tensor._version != self.version:
            raise RunError(
                "a tensor that the attention was computed from was changed in place afterwards",
                cause="a mask or a bias that the model reuses",
                remedy="look at the weights before the model runs again",
            )
        return self.tensor.detach()


@dataclass(eq=False)
class Step:
    """One operation of a tape, or the product that the tape begins with.

    function, arguments, keywords: the operation; tensors among the arguments are `View` or `Held`.
    place: which of its results this is; None for an operation with one result.
    target: of an operation in place, the view that it has written into.
    is_plain: whether numbers stand in this storage where they stand in that of the product.
    softmax: the latest softmax, or exponential, among the steps up to this one.
    is_dropped: whether dropout is among the steps; it is left out when they are run again.
    is_map: whether the rows are sure to be weights: a softmax, and nothing after it but copies.
    met: whether the weights of this softmax have met values; only the first meeting counts.
    uses: how many later steps read it.
    """

    function: Any
    arguments: tuple
    keywords: dict[str, Any]
    place: int | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    target: View | None = None
    product: Step = field(default=None, repr=False)  # type: ignore[assignment]
    softmax: Step | None = field(default=None, repr=False)
    is_plain: bool = True
    is_dropped: bool = False
    is_map: bool = False
    met: bool = False
    uses: int = 0

    def __post_init__(self) -> None:
        if self.product is None:
            self.product = self

    def value(self, known: dict[int, Tensor]) -> Tensor:
        """What the step makes, run again; what several steps read is kept in `known`, by id."""
        if id(self) in known:
            return known[id(self)]
        made = with_strides(self._run(known), self)
        if self.uses > 1:
            known[id(self)] = made
        return made

    def _run(self, known: dict[int, Tensor]) -> Tensor:
        arguments = run_again(self.arguments, known)
        keywords = run_again(self.keywords, known)
        if self.target is not None:
            whole = self.target.step.value(known).clone(memory_format=torch.preserve_format)
            self.function(self.target.of(whole), *arguments[1:], **keywords)
            return whole
        made = self.function(*arguments, **keywords)
        return made if self.place is None else made[self.place]

    def index(self, known: dict[int, Tensor]) -> Tensor:
        """For each number its place in the product, counted row by row; `OUTSIDE` for others."""
        if id(self) not in known:
            known[id(self)] = with_strides(self._index(known), self)
        return known[id(self)]

    def _index(self, known: dict[int, Tensor]) -> Tensor:
        if self is self.product:
            return torch.arange(math.prod(self.shape), device="cpu").view(self.shape)
        if self.target is not None:
            return self.target.step.index(known)
        if name_of(self.function) in MOVES:
            arguments, keywords = tree_map(
                lambda leaf: self._moved(leaf, known), (self.arguments, self.keywords)
            )
            moved = self.function(*arguments, **keywords)
            return (moved if self.place is None else moved[self.place]) - 1
        leaves = tree_leaves((self.arguments, self.keywords))
        view = next(leaf for leaf in leaves if self._is_of_product(leaf))
        index = view.index(known)
        return index if index.shape == self.shape else _broadcast(index, self.shape)

    def _is_of_product(self, leaf: Any) -> bool:
        return isinstance(leaf, View) and leaf.step.product is self.product

    def _moved(self, leaf: Any, known: dict[int, Tensor]) -> Any:
        """An argument with places, counted from 1, for numbers of the product, and 0 for others."""
        if self._is_of_product(leaf):
            return leaf.index(known) + 1
        if isinstance(leaf, View):
            return torch.zeros(leaf.size, dtype=torch.long, device="cpu")
        if isinstance(leaf, Held):
            tensor = leaf.value().cpu()
            return tensor.long() * 0 if tensor.is_floating_point() else tensor
        return 0 if isinstance(leaf, float) else leaf


@dataclass(frozen=True)
class View:
    """What an operation was given of a step's storage."""

    step: Step
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, whole: Tensor) -> Tensor:
        """The view of a tensor that has the step's strides."""
        return whole.as_strided(self.size, self.stride, self.offset)

    def value(self, known: dict[int, Tensor]) -> Tensor:
        """The numbers, run again."""
        return self.of(self.step.value(known))

    def index(self, known: dict[int, Tensor]) -> Tensor:
        """Their places in the product."""
        return self.of(self.step.index(known))

    @property
    def is_whole(self) -> bool:
        """Whether it has each number of the storage once."""
        return self.offset == 0 and math.prod(self.size) == math.prod(self.step.shape)


def name_of(function: Any) -> str:
    """The name of an operation without its overload, such as "add", or "other::add"."""
    return function._schema.name.removeprefix("aten::")


def copied(product: Step) -> tuple[Tensor, Tensor] | None:
    """Copies of the factors of a product, by which it is run again; None for a softmax alone."""
    if (name := name_of(product.function)) not in PRODUCTS:
        return None
    at, arguments = PRODUCTS[name], product.arguments
    query, key = (
        factor if factor.version is None else Held(factor.value(), copies=True)
        for factor in arguments[at : at + 2]
    )
    product.arguments = (*arguments[:at], query, key, *arguments[at + 2 :])
    return query.tensor, key.tensor.mT


def is_softmax_of(view: View) -> bool:
    """Whether the last axis of a view is that of its softmax, whose rows nothing changed."""
    softmax = view.step.softmax or view.step
    return view.step.is_map and view.stride[-1] == softmax.stride[softmax.arguments[1]]


def are_map(weights: Tensor) -> bool:
    """Whether weights are not negative, and sum to at most one in each row."""
    wide = weights.detach().float()
    room = ROUGH if weights.dtype.itemsize < 4 else EXACT
    return bool((wide >= 0).all() & (wide.sum(-1) <= 1 + room).all())


def run_again(value: Any, known: dict[int, Tensor]) -> Any:
    """Arguments with their tensors."""

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, View):
            return leaf.value(known)
        return leaf.value() if isinstance(leaf, Held) else leaf

    return tree_map(tensor, value)


def with_strides(tensor: Tensor, step: Step) -> Tensor:
    """The tensor as it stood in memory, since views of it are by strides."""
    if tensor.stride() == step.stride:
        return tensor
    made = torch.empty_strided(step.shape, step.stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _broadcast(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An index in a larger shape; all `OUTSIDE` where it does not broadcast to it."""
    try:
        return index.expand(shape)
    except RuntimeError:
        return torch.full(shape, OUTSIDE, device="cpu")
