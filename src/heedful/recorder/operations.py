"""Every operation of torch below Python, while a model runs: what attention can be made out in.

A mode that sees what einsum, matmul and `@` come to: views, which cost nothing here, and products.
No function of the model's is run again, and nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.recorder import changes, flow
from heedful.recorder.aside import computing
from heedful.recorder.axes import Axis, Part, Parts, Storage, View, fresh, place, written
from heedful.recorder.scores import Product, Scores, Weights, based, product_of
from heedful.recorder.softmax_matmul import Meeting

SOFTMAXES = changes.SOFTMAX | changes.LOG_SOFTMAX
HAND_ON = changes.HANDS_ON | SOFTMAXES | {"cat", "sum", "logsumexp", "native_dropout"}
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
WHOLE = {"linear", "layer_norm", "rms_norm"}  # composites that need not be taken apart
VIEWS = {"_unsafe_view", "_reshape_alias"}
FLEX = ("query", "key", "value", "score_mod", "block_mask", "scale")
SWEEP = 64  # operations after which what has gone is forgotten
Fused = Callable[..., None]


class Kind(NamedTuple):
    """What is known of an operation by its name alone."""

    name: str
    is_view: bool
    is_in_place: bool
    is_composite: bool
    rule: flow.Rule | None
    is_pointwise: bool
    parameters: tuple[str, ...] = ()

    def named(self, arguments: tuple) -> dict[str, Any]:
        """Arguments by their names."""
        return dict(zip(self.parameters, arguments, strict=False))


class Kept:
    """What is known of a storage while it lives: its axes, and what role it has in attention."""

    __slots__ = ("alive", "noise", "role", "storage")

    def __init__(self, tensor: Tensor, storage: Storage, role: Any = None) -> None:
        self.alive = StorageWeakRef(tensor.untyped_storage())  # while it is held, no other is here
        self.storage, self.role, self.noise = storage, role, False


class Weighing(NamedTuple):
    """Each value times its weight, whose sum is to come."""

    weights: Weights
    table: Tensor
    table_axes: list[Parts]
    value: Tensor
    axes: list[Parts]
    mine: set[Axis]


class Operations(TorchDispatchMode):
    """Follows scores from their product to the values that they weigh.

    Args:
        here: whether a pass of the model runs, of which this is to be followed.
        fused: operations that are attention as a whole, by name, and who is told of them.
        met: is told of weights that met values: what it was, weights, values and the result.
        missed: is told of an error.
        softmax: is told of each softmax of scores.
        chained: is told of a product of two tensors that meets a third one through no softmax.
        parameters: storages of the model's parameters and buffers.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        here: Callable[[], bool],
        fused: dict[str, Fused],
        met: Callable[[Meeting], None],
        missed: Callable[[str], None],
        softmax: Callable[[Weights], None],
        chained: Callable[[], None],
        parameters: set[int],
    ) -> None:
        super().__init__()
        self.here, self.fused, self.met, self.missed = here, fused, met, missed
        self.softmax, self.chained, self.parameters = softmax, chained, parameters
        self._kept: dict[int, Kept] = {}
        self._count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        if not self.here():
            return function(*arguments, **keywords)
        kind = _KINDS.get(function) or _learn(function)
        if kind.is_composite:  # inference mode hands them on whole
            with self:
                return function._op_dk(COMPOSITE, *arguments, **keywords)
        if kind.is_view:
            return function(*arguments, **keywords)
        made = function(*arguments, **keywords)
        try:
            with computing():
                self._follow(kind, arguments, keywords, made)
        except Exception as error:  # which must not end the pass of somebody else
            self.missed(f"{type(error).__name__}: {error}")
        return made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while it watches, so that there is nothing to be kept from it."""
        return False

    def begin(self, given: list[Tensor]) -> None:
        """A new pass, with its inputs."""
        self._kept.clear()
        for number, tensor in enumerate(given):
            if not flow.is_tensor(tensor) or not tensor.numel():
                continue
            sizes, strides = place(tensor)
            axes = [
                (Part(Axis(size, (number, dim)), 1, size),) if size > 1 else ()
                for dim, size in enumerate(sizes)
            ]
            items = written(axes, sizes, strides)
            self._keep(tensor, Storage(lambda items=items: items))

    def view(self, tensor: Tensor) -> View:
        """A tensor as what is known of its storage."""
        sizes, strides = place(tensor)
        return View(self._of(tensor).storage, sizes, strides)

    def forget(self) -> None:
        """Let go of everything."""
        self._kept.clear()

    def _follow(self, kind: Kind, arguments: tuple, keywords: dict, made: Any) -> None:
        self._count += 1
        if self._count % SWEEP == 0:
            self._sweep()
        if kind.name in self.fused:
            self.fused[kind.name](made, kind.named(arguments) | keywords)
        result = made[0] if isinstance(made, tuple | list) and made else made
        if not flow.is_tensor(result):
            if kind.name in changes.SOFTMAX and isinstance(result, Tensor):
                self.missed(f"a softmax of {_unlike(result)}, whose axes cannot be followed")
            return
        if kind.is_in_place:
            self._in_place(kind, arguments, keywords, result)
            return
        opened = _opened(arguments)
        held = [self._of(one) if flow.is_tensor(one) else None for one in opened]
        views = [
            View(kept.storage, *place(one))
            for one, kept in zip(opened, held, strict=True)
            if kept is not None
        ]
        if kind.name in flow.PRODUCTS:
            self._product(kind, arguments, keywords, views, result)
            return
        storage = self._storage(kind, arguments, keywords, views, result)
        kept = self._keep(result, storage)
        if kind.name in SOFTMAXES or any(one is not None and one.role is not None for one in held):
            self._roles(kind, arguments, keywords, opened, result, kept)

    def _storage(
        self, kind: Kind, arguments: tuple, keywords: dict, views: list[View], result: Tensor
    ) -> Storage:
        """The axes of a result, read when somebody asks for them."""
        is_parameter = bool(views) and all(view.storage.is_parameter for view in views)
        is_made = bool(views) and all(
            view.storage.is_parameter or view.storage.is_made for view in views
        )
        if kind.name in flow.PRODUCTS or kind.name == "linear":
            is_parameter = False
        is_made = is_made and not is_parameter
        if kind.rule is None or not views:
            return Storage(fresh(result), is_parameter=is_parameter, is_made=is_made)
        sizes, strides = place(result)
        if kind.rule is flow.broadcast and views[0][1:] == (sizes, strides):
            first = views[0].storage  # whose axes stand as they did
            if (first.is_parameter, first.is_made) == (is_parameter, is_made):
                return first
        told = flow.told_of(kind.name, kind.named(arguments) | keywords)
        pieces = told.pop("pieces", None)
        if pieces is not None:
            told["steps"] = flow.steps_between(pieces, views[0])
        rule = kind.rule
        depth = 1 + max(view.storage.depth for view in views)

        def make() -> list[tuple[Part, int]]:
            return written(rule(views, sizes, told), sizes, strides)

        return Storage(make, depth, is_parameter, is_made)

    def _of(self, tensor: Tensor) -> Kept:
        key = tensor.untyped_storage()._cdata
        kept = self._kept.get(key)
        if kept is None:
            is_parameter = key in self.parameters
            kept = self._keep(tensor, Storage(fresh(tensor), is_parameter=is_parameter))
        return kept

    def _keep(self, tensor: Tensor, storage: Storage, role: Any = None) -> Kept:
        kept = Kept(tensor, storage, role)
        self._kept[tensor.untyped_storage()._cdata] = kept
        return kept

    def _sweep(self) -> None:
        gone = [key for key, kept in self._kept.items() if kept.alive.expired()]
        for key in gone:
            del self._kept[key]

    def _role(self, tensor: Any) -> Any:
        if not flow.is_tensor(tensor):
            return None
        kept = self._kept.get(tensor.untyped_storage()._cdata)
        return None if kept is None else kept.role

    def _is_noise(self, tensor: Tensor) -> bool:
        kept = self._kept.get(tensor.untyped_storage()._cdata)
        return kept is not None and kept.noise

    def _axes(self, tensor: Tensor) -> list[Parts] | None:
        """Those of a tensor that has a role; None where they cannot be read off its strides."""
        axes = self.view(tensor).axes()
        return None if None in axes else axes  # type: ignore[return-value]

    def _in_place(self, kind: Kind, arguments: tuple, keywords: dict, result: Tensor) -> None:
        kept = self._of(result)
        if kind.name in ("bernoulli", "random", "uniform", "normal"):
            kept.noise = True
            return
        if kind.name == "copy":
            kept.role = None
            self._copied(kept, result, arguments[1])
            return
        if kept.role is None:
            return
        if not kind.is_pointwise:
            kept.role = None
            return
        axes = self._axes(result)
        if axes is None or result.numel() * result.element_size() != _bytes(result):
            kept.role = None  # a part of the scores alone
            return
        kept.role = self._after(kept.role, kind, arguments, keywords, 0, axes, None, result)

    def _copied(self, kept: Kept, result: Tensor, source: Any) -> None:
        """What is written into a storage, such as a cache, says of what its axes are."""
        if not flow.is_tensor(source):
            return
        items = kept.storage.items()
        target, given = self.view(result).axes(), self.view(source).axes()
        flags = {}
        for own, other in zip(reversed(target), reversed(given), strict=False):
            told = {part.feature for part in other or ()}
            for part in own or ():
                if len(told) == 1 and part.feature is None:
                    flags[part.axis] = next(iter(told))
        made = [(one._replace(feature=flags.get(one.axis, one.feature)), at) for one, at in items]
        kept.storage = Storage(lambda: made)

    def _product(
        self, kind: Kind, arguments: tuple, keywords: dict, views: list[View], result: Tensor
    ) -> None:
        at = flow.PRODUCTS[kind.name]
        left, right = arguments[at : at + 2]
        roles = [self._role(left), self._role(right)]
        storage = self._storage(kind, arguments, keywords, views, result)
        if any(isinstance(role, Weights) and not role.is_logarithm for role in roles):
            self._keep(result, storage)
            self._meet(roles, left, right, result)
            return
        of_parameters = any(view.storage.is_parameter for view in views[-2:])
        if of_parameters:
            self._keep(result, storage)
            return
        if any(isinstance(role, Scores) and role.total is None for role in roles):
            self.chained()
        product = product_of(left, right, *flow.factors(*views[-2:]))
        sizes, strides = place(result)
        items = written(product.axes, sizes, strides)
        role = Scores(product)
        if at:
            role = self._with_added(role, arguments[0], keywords, product)
        self._keep(result, Storage(lambda: items), role)

    def _with_added(
        self, role: Scores, added: Tensor, keywords: dict, product: Product
    ) -> Scores:
        """Of `baddbmm`: beta · added + alpha · left @ right."""
        alpha, beta = float(keywords.get("alpha", 1)), float(keywords.get("beta", 1))
        if alpha != 1:
            role = role.then("scale", alpha, product.axes)
        if not beta:
            return role
        value = added.detach() if beta == 1 else added.detach() * beta
        return role.then("add", value, product.axes)

    def _meet(self, roles: list[Any], left: Tensor, right: Tensor, result: Tensor) -> None:
        """Weights in a product: with values, if it adds up along their softmax."""
        if isinstance(roles[0], Weights):
            role, weights, value = roles[0], left, right
        else:
            role, weights, value, result = roles[1], right.mT, left.mT, result.mT
        axes = self._axes(weights)
        if axes is None or not _are_same(axes[-1], role.over):
            return
        *batch, rows, columns = axes
        self.met(
            Meeting(
                role, weights, axes, value, [*batch, columns, None], result, [*batch, rows, None]
            )
        )

    def _roles(
        self,
        kind: Kind,
        arguments: tuple,
        keywords: dict,
        opened: list[Any],
        result: Tensor,
        kept: Kept,
    ) -> None:
        """Give the result the role that an operand hands on."""
        if kind.name == "native_dropout":
            opened = opened[:1]
        carried = [
            (place, one)
            for place, one in enumerate(opened)
            if self._role(one) is not None
        ]
        if kind.name in SOFTMAXES and not carried:
            kept.role = self._alone(arguments, keywords, kind, result, kept)
            return
        for place_, one in carried:
            role, axes = self._role(one), self._axes(one)
            if axes is None:
                continue
            if isinstance(role, Weighing):
                self._summed(role, kind, arguments, keywords, axes, result)
                continue
            if isinstance(role, Weights) and kind.name == "mul" and result.numel() > one.numel():
                other = arguments[1 - place_]
                if flow.is_tensor(other):
                    kept.role = self._weighed(role, one, axes, other, result, kept)
                return
            if not kind.is_pointwise and kind.name not in HAND_ON:
                continue
            made = self._after(role, kind, arguments, keywords, place_, axes, one, result)
            if made is None:
                continue
            kept.role = made
            if result.shape == one.shape:
                items = written(axes, *place(result))
                kept.storage = Storage(lambda items=items: items)
            elif isinstance(made, Scores) and made.sink is not None and made.total is None:
                self._with_column(kept, axes, result)
            return

    def _with_column(self, kept: Kept, axes: list[Parts], result: Tensor) -> None:
        sizes, strides = place(result)
        wider = [
            parts if _length(parts) == size else (Part(Axis(size), 1, size),)
            for parts, size in zip(axes, sizes, strict=True)
        ]
        items = written(wider, sizes, strides)
        kept.storage = Storage(lambda: items)

    def _after(
        self,
        role: Any,
        kind: Kind,
        arguments: tuple,
        keywords: dict,
        place_: int,
        axes: list[Parts],
        given: Tensor | None,
        result: Tensor,
    ) -> Any:
        step = changes.Operation(
            kind.name, arguments, keywords, place_, axes, given, result, self._is_noise, self._role
        )
        if isinstance(role, Weighing):
            return None
        if isinstance(role, Weights):
            return changes.after_weights(role, step)
        made = changes.after_scores(role, step)
        if isinstance(made, Weights) and not isinstance(role, Weights):
            self.softmax(made)
        return made

    def _alone(
        self, arguments: tuple, keywords: dict, kind: Kind, result: Tensor, kept: Kept
    ) -> Weights | None:
        """A softmax of what is no product of two tensors."""
        if result.ndim < 2 or not result.is_floating_point():
            return None
        dim = arguments[1] if len(arguments) > 1 else keywords["dim"]
        axes, origins = based(self.view(arguments[0]).axes(), tuple(result.shape))
        items = written(axes, *place(result))
        kept.storage = Storage(lambda: items)
        is_logarithm = kind.name in changes.LOG_SOFTMAX
        return Weights(
            Scores(None), axes, dim % result.ndim, is_logarithm=is_logarithm, origins=origins
        )

    def _weighed(
        self, role: Weights, weights: Tensor, axes: list[Parts], value: Tensor, result: Tensor,
        kept: Kept,
    ) -> Weighing:  # fmt: skip
        """Weights times values, before they are added up: axes of the weights, then widths."""
        own = [()] * (result.ndim - len(axes)) + list(axes)
        made = [
            parts if parts or size == 1 else (Part(Axis(size), 1, size),)
            for parts, size in zip(own, result.shape, strict=True)
        ]
        items = written(made, *place(result))
        kept.storage = Storage(lambda: items)
        mine = {part.axis for parts in axes for part in parts}
        value = value.detach().expand(result.shape)
        return Weighing(role, weights.detach(), axes, value, made, mine)

    def _summed(
        self, role: Weighing, kind: Kind, arguments: tuple, keywords: dict, axes: list[Parts],
        result: Tensor,
    ) -> None:  # fmt: skip
        """Each value times its weight, added up: over the keys, it is a product."""
        if kind.name != "sum" or role.axes != axes:
            return
        dims = flow.told_of("sum", kind.named(arguments) | keywords)["dims"]
        if len(dims) != 1 or not _are_same(axes[next(iter(dims))], role.weights.over):
            return

        def known(several: list[Parts]) -> list[Any]:
            return [
                parts if all(part.axis in role.mine for part in parts) else None
                for parts in several
            ]

        left = [parts for dim, parts in enumerate(axes) if dim not in dims]
        output = result.reshape([size for dim, size in enumerate(role.value.shape) if dim not in dims])
        value, value_axes = _once(role.value, known(role.axes))
        self.met(
            Meeting(
                role.weights, role.table, role.table_axes, value, value_axes, output, known(left)
            )
        )


def _once(value: Tensor, axes: list[Any]) -> tuple[Tensor, list[Any]]:
    """Without the repetitions of axes along which it was expanded."""
    axes = list(axes)
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if size > 1 and stride == 0:
            value, axes[dim] = value.narrow(dim, 0, 1), ()
    return value, axes


def _are_same(parts: Parts, over: Parts) -> bool:
    """Whether an axis is that of a softmax, or all of it but a sink's column."""
    return [part.axis for part in parts] == [part.axis for part in over]


_KINDS: dict[Any, Kind] = {}  # of every operation that was met


def _learn(function: Any) -> Kind:
    if not isinstance(function, torch._ops.OpOverload):
        kind = Kind(str(function), False, False, False, None, False, FLEX)
        _KINDS[function] = kind
        return kind
    name = function._schema.name.split("::")[-1]
    writes = [one.alias_info for one in function._schema.returns if one.alias_info is not None]
    in_place = any(one.is_write for one in writes)
    is_composite = function.has_kernel_for_dispatch_key(COMPOSITE) and name not in WHOLE
    is_pointwise = torch.Tag.pointwise in function.tags
    base = name[:-1] if in_place and name.endswith("_") else name
    is_view = (bool(writes) and not in_place) or name in VIEWS
    rule = flow.rule_of(base, is_pointwise)
    parameters = tuple(one.name for one in function._schema.arguments)
    kind = Kind(base, is_view, in_place, is_composite, rule, is_pointwise, parameters)
    _KINDS[function] = kind
    return kind


def _unlike(tensor: Tensor) -> str:
    return "nested tensors" if tensor.is_nested else f"a {type(tensor).__name__}"


def _opened(arguments: tuple) -> list[Any]:
    """All operands, lists of them opened."""
    found: list[Any] = []
    for one in arguments:
        found.extend(one if isinstance(one, list | tuple) else (one,))
    return found


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _length(parts: Parts) -> int:
    length = 1
    for part in parts:
        length *= part.size
    return length
