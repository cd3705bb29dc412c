"""The steps of a tape: the operations between the two products of attention by hand.

A tape begins with the product of queries and keys. Each step is a later operation on its result:
the function, its other arguments, and the shape and strides of its result. Replayed from copies of
the two factors, the steps reproduce the model's weights to the last bit. A step stands for a whole
storage, a `View` for a part of it.
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
from heedful.recorder.doors import outside_mode

OUTSIDE = -1  # the index of an entry that is not of the product, such as a sink's
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
FLEX = ("query", "key", "value", "score_mod", "block_mask", "scale")  # arguments of flex attention
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # with the index of the first factor
EXACT, ROUGH = 1e-4, 2e-2  # how far the sum of weights may exceed 1, in 32 and in 16 bits
SMALL = 1 << 12  # tensors of up to this many numbers are copied
# Operations that move the entries of their input to other positions
MOVES = {
    "cat", "constant_pad_nd", "flip", "gather", "index", "index_select", "repeat", "roll", "sort",
    "take_along_dim", "topk",
}  # fmt: skip


class Kind(NamedTuple):
    """The schema of an operation."""

    name: str
    names: tuple[str, ...]  # of its arguments
    is_view: bool
    writes: int | None  # the index of the argument that it writes into
    is_composite: bool  # whether it consists of other operations


@functools.cache
def kind_of(function: Any) -> Kind:
    """Return the kind of an operation."""
    if not isinstance(function, torch._ops.OpOverload):  # such as flex attention
        return Kind(str(function), FLEX, False, None, False)
    schema, name = function._schema, name_of(function)
    namespace = schema.name.split("::")[0]
    name = name if namespace == "aten" else f"{namespace}::{name}"
    aliases = [argument.alias_info for argument in schema.arguments]
    writes = next((i for i, alias in enumerate(aliases) if alias and alias.is_write), None)
    returns_alias = any(result.alias_info for result in schema.returns)
    is_view = (returns_alias and writes is None) or name in ("_unsafe_view", "_reshape_alias")
    names = tuple(argument.name for argument in schema.arguments)
    is_composite = outside_mode.has_kernel(function, COMPOSITE)
    return Kind(name, names, is_view and not is_composite, writes, is_composite)


class StepInput:
    """A tensor that a step needs for its replay.

    It is copied if it is small, requires a gradient, or is an inference tensor, whose changes torch
    does not count; with `copies`, in any case.
    """

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor, copies: bool = False) -> None:
        counts = not (tensor.is_inference() or torch.is_inference_mode_enabled())
        copies = copies or not counts or tensor.requires_grad or tensor.numel() <= SMALL
        self.tensor = tensor.detach().clone() if copies else tensor
        self.version = None if copies else tensor._version

    def value(self) -> Tensor:
        """Return the tensor; raise `RunError` if it was changed in place since."""
        if self.version is not None and self.tensor._version != self.version:
            raise RunError(
                "a tensor that the attention was computed from was changed in place afterwards",
                cause="a mask or a bias that the model reuses",
                remedy="look at the weights before the model runs again",
            )
        return self.tensor.detach()


@dataclass(eq=False)
class Step:
    """One operation of a tape, or the product that begins the tape.

    function, arguments, keywords: the operation; tensors are replaced by `View` or `StepInput`.
    place: the index of this result; None for an operation with a single result.
    target: the view that an in-place operation writes into.
    product: the step that begins the tape.
    softmax: the latest softmax or exponential among the steps up to this one.
    is_plain: whether entries have the same position in memory as in the product.
    is_dropped: whether dropout is among the steps; a replay leaves it out.
    is_map: whether the rows are certainly weights: a softmax, followed by copies at most.
    has_call: whether the weights of this softmax were multiplied with values; only once counts.
    uses: the number of later steps that read it.
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
    has_call: bool = False
    uses: int = 0

    def __post_init__(self) -> None:
        if self.product is None:
            self.product = self

    def value(self, cache: dict[int, Tensor]) -> Tensor:
        """Replay the step; results that several steps read are stored in `cache`, by id."""
        if id(self) in cache:
            return cache[id(self)]
        result = with_strides(self._run(cache), self)
        if self.uses > 1:
            cache[id(self)] = result
        return result

    def _run(self, cache: dict[int, Tensor]) -> Tensor:
        arguments = replay(self.arguments, cache)
        keywords = replay(self.keywords, cache)
        if self.target is not None:
            storage = self.target.step.value(cache).clone(memory_format=torch.preserve_format)
            self.function(self.target.apply(storage), *arguments[1:], **keywords)
            return storage
        result = self.function(*arguments, **keywords)
        return result if self.place is None else result[self.place]

    def index(self, cache: dict[int, Tensor]) -> Tensor:
        """Return the index of each entry in the flattened product; `OUTSIDE` for other entries."""
        if id(self) not in cache:
            cache[id(self)] = with_strides(self._index(cache), self)
        return cache[id(self)]

    def _index(self, cache: dict[int, Tensor]) -> Tensor:
        if self is self.product:
            return torch.arange(math.prod(self.shape), device="cpu").view(self.shape)
        if self.target is not None:
            return self.target.step.index(cache)
        if name_of(self.function) in MOVES:
            arguments, keywords = tree_map(
                lambda leaf: self._indices(leaf, cache), (self.arguments, self.keywords)
            )
            moved = self.function(*arguments, **keywords)
            return (moved if self.place is None else moved[self.place]) - 1
        leaves = tree_leaves((self.arguments, self.keywords))
        view = next(leaf for leaf in leaves if self._is_of_product(leaf))
        index = view.index(cache)
        return index if index.shape == self.shape else _broadcast(index, self.shape)

    def _is_of_product(self, leaf: Any) -> bool:
        return isinstance(leaf, View) and leaf.step.product is self.product

    def _indices(self, leaf: Any, cache: dict[int, Tensor]) -> Any:
        """Replace a tensor argument by the indices of its entries, plus 1; 0 for other entries."""
        if self._is_of_product(leaf):
            return leaf.index(cache) + 1
        if isinstance(leaf, View):
            return torch.zeros(leaf.size, dtype=torch.long, device="cpu")
        if isinstance(leaf, StepInput):
            tensor = leaf.value().cpu()
            return tensor.long() * 0 if tensor.is_floating_point() else tensor
        return 0 if isinstance(leaf, float) else leaf


@dataclass(frozen=True)
class View:
    """A view of a step's storage, as an operation received it."""

    step: Step
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def apply(self, storage: Tensor) -> Tensor:
        """Apply the view to a tensor with the strides of the step."""
        return storage.as_strided(self.size, self.stride, self.offset)

    def value(self, cache: dict[int, Tensor]) -> Tensor:
        """Replay the entries."""
        return self.apply(self.step.value(cache))

    def index(self, cache: dict[int, Tensor]) -> Tensor:
        """Return the index of each entry in the flattened product."""
        return self.apply(self.step.index(cache))

    @property
    def is_whole(self) -> bool:
        """Whether the view has each entry of the storage once."""
        return self.offset == 0 and math.prod(self.size) == math.prod(self.step.shape)


def name_of(function: Any) -> str:
    """Return the name of an operation without its overload: "add", or "namespace::add"."""
    return function._schema.name.removeprefix("aten::")


def copy_factors(product: Step) -> tuple[Tensor, Tensor] | None:
    """Copy the factors of a product for its replay, and return them; None for a softmax alone."""
    if (name := name_of(product.function)) not in PRODUCTS:
        return None
    first, arguments = PRODUCTS[name], product.arguments
    query, key = (
        factor if factor.version is None else StepInput(factor.value(), copies=True)
        for factor in arguments[first : first + 2]
    )
    product.arguments = (*arguments[:first], query, key, *arguments[first + 2 :])
    return query.tensor, key.tensor.mT


def is_softmax_output(view: View) -> bool:
    """Whether the rows of a view are unchanged rows of a softmax."""
    softmax = view.step.softmax or view.step
    return view.step.is_map and view.stride[-1] == softmax.stride[softmax.arguments[1]]


def are_map(weights: Tensor) -> bool:
    """Whether weights are nonnegative and sum to at most one in each row."""
    wide = weights.detach().float()
    tolerance = ROUGH if weights.dtype.itemsize < 4 else EXACT
    return bool((wide >= 0).all() & (wide.sum(-1) <= 1 + tolerance).all())


def replay(value: Any, cache: dict[int, Tensor]) -> Any:
    """Replace each `View` and `StepInput` among arguments by its tensor."""

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, View):
            return leaf.value(cache)
        return leaf.value() if isinstance(leaf, StepInput) else leaf

    return tree_map(tensor, value)


def with_strides(tensor: Tensor, step: Step) -> Tensor:
    """Lay out a tensor in memory as the step's result was, since each `View` uses strides."""
    if tensor.stride() == step.stride:
        return tensor
    strided = torch.empty_strided(step.shape, step.stride, dtype=tensor.dtype, device=tensor.device)
    return strided.copy_(tensor)


def _broadcast(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Broadcast an index to a shape; return only `OUTSIDE` if the shapes do not match."""
    try:
        return index.expand(shape)
    except RuntimeError:
        return torch.full(shape, OUTSIDE, device="cpu")
