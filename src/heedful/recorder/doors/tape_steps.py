"""The steps of a tape: the operations between the two products of attention by hand.

A tape begins with the product of queries and keys. A `Step` stores one operation of the tape: its
function, its arguments, and the shape and strides of its result. A replay of all steps, from copies
of the two factors, reproduces the model's weights to the last bit. A step describes a whole
storage, and a `View` a part of this storage.
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

OUTSIDE = -1  # index of an entry that does not come from the product, such as a sink's
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
FLEX = ("query", "key", "value", "score_mod", "block_mask", "scale")  # flex attention's arguments
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # the argument index of the first factor
EXACT, ROUGH = 1e-4, 2e-2  # tolerances for a sum of weights above 1, in 32 and in 16 bits
SMALL = 1 << 12  # tensors of up to this many numbers are copied
# Operations that move the entries of their input to other positions
MOVES = {
    "cat", "constant_pad_nd", "flip", "gather", "index", "index_select", "repeat", "roll", "sort",
    "take_along_dim", "topk",
}  # fmt: skip


class Schema(NamedTuple):
    """Facts about an operation of torch that do not depend on its inputs."""

    name: str
    argument_names: tuple[str, ...]
    is_view: bool
    written_index: int | None  # the index of the argument that it writes into
    is_composite: bool  # whether it consists of other operations


@functools.cache
def schema_of(function: Any) -> Schema:
    """Return the schema of an operation."""
    if not isinstance(function, torch._ops.OpOverload):  # such as flex attention
        return Schema(str(function), FLEX, False, None, False)
    schema, name = function._schema, name_of(function)
    namespace = schema.name.split("::")[0]
    name = name if namespace == "aten" else f"{namespace}::{name}"
    aliases = [argument.alias_info for argument in schema.arguments]
    writes = next((i for i, alias in enumerate(aliases) if alias and alias.is_write), None)
    returns_alias = any(result.alias_info for result in schema.returns)
    is_view = (returns_alias and writes is None) or name in ("_unsafe_view", "_reshape_alias")
    names = tuple(argument.name for argument in schema.arguments)
    is_composite = outside_mode.has_kernel(function, COMPOSITE)
    return Schema(name, names, is_view and not is_composite, writes, is_composite)


class StepInput:
    """A tensor that a step needs for its replay.

    The tensor is copied if it is small, requires a gradient, or is an inference tensor (torch does
    not count in-place changes of those), or if `copies` is True. Else only a reference is stored.
    """

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor, copies: bool = False) -> None:
        counts = not (tensor.is_inference() or torch.is_inference_mode_enabled())
        copies = copies or not counts or tensor.requires_grad or tensor.numel() <= SMALL
        self.tensor = tensor.detach().clone() if copies else tensor
        self.version = None if copies else tensor._version

    def value(self) -> Tensor:
        """Return the tensor; raise `RunError` if it was not copied and then changed in place."""
        if self.version is not None and self.tensor._version != self.version:
            raise RunError(
                "a tensor that the attention was computed from was changed in place afterwards",
                cause="the model reuses a mask or a bias",
                remedy="look at the weights before the model runs again",
            )
        return self.tensor.detach()


@dataclass(eq=False)
class Step:
    """One operation of a tape, or the product that begins the tape.

    function, arguments, keywords: the operation; tensors are replaced by `View` or `StepInput`.
    output_index: the index of this result among the outputs; None if there is a single output.
    target: the view that an in-place operation writes into.
    product: the step that begins the tape.
    softmax: the latest softmax or exponential among the steps up to this one.
    is_plain: whether each entry has the same position in memory as in the product.
    is_dropped: whether dropout is among the steps; a replay leaves it out.
    is_map: whether the result has the rows of a softmax, after only copies or dropout.
    has_call: whether this softmax already belongs to a call; later products with it are ignored.
    uses: the number of later steps that read the result.
    """

    function: Any
    arguments: tuple
    keywords: dict[str, Any]
    output_index: int | None
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
        """Replay the step; `cache` has results that several steps read, by the id of their step."""
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
        return result if self.output_index is None else result[self.output_index]

    def index(self, cache: dict[int, Tensor]) -> Tensor:
        """Return for each entry its index in the flattened product, or `OUTSIDE`."""
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
            return (moved if self.output_index is None else moved[self.output_index]) - 1
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
    """A view of a step's storage that an operation received as an argument."""

    step: Step
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def apply(self, storage: Tensor) -> Tensor:
        """Return this view of a tensor that has the strides of the step."""
        return storage.as_strided(self.size, self.stride, self.offset)

    def value(self, cache: dict[int, Tensor]) -> Tensor:
        """Replay the step, and return this view of its result."""
        return self.apply(self.step.value(cache))

    def index(self, cache: dict[int, Tensor]) -> Tensor:
        """Return for each entry its index in the flattened product, or `OUTSIDE`."""
        return self.apply(self.step.index(cache))

    @property
    def is_whole(self) -> bool:
        """Whether the view has every entry of the storage exactly once."""
        return self.offset == 0 and math.prod(self.size) == math.prod(self.step.shape)


def name_of(function: Any) -> str:
    """Return the name of an operation without its overload: "add", or "namespace::add"."""
    return function._schema.name.removeprefix("aten::")


def copy_factors(product: Step) -> tuple[Tensor, Tensor] | None:
    """Return the factors (…, n, d) and (…, m, d) of a product, copied; None for a softmax."""
    if (name := name_of(product.function)) not in PRODUCTS:
        return None
    first, arguments = PRODUCTS[name], product.arguments
    left, right = (
        factor if factor.version is None else StepInput(factor.value(), copies=True)
        for factor in arguments[first : first + 2]
    )
    product.arguments = (*arguments[:first], left, right, *arguments[first + 2 :])
    return left.tensor, right.tensor.mT


def is_softmax_output(view: View) -> bool:
    """Whether the rows of a view are rows of a softmax, without any change but dropout."""
    softmax = view.step.softmax or view.step
    return view.step.is_map and view.stride[-1] == softmax.stride[softmax.arguments[1]]


def rows_are_weights(weights: Tensor) -> bool:
    """Whether the entries are nonnegative and sum to at most one in each row."""
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
    """Return a tensor with the strides of the step's result, which each `View` relies on."""
    if tensor.stride() == step.stride:
        return tensor
    strided = torch.empty_strided(step.shape, step.stride, dtype=tensor.dtype, device=tensor.device)
    return strided.copy_(tensor)


def _broadcast(index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Broadcast an index to a shape; if the shapes do not match, every entry is `OUTSIDE`."""
    try:
        return index.expand(shape)
    except RuntimeError:
        return torch.full(shape, OUTSIDE, device="cpu")
