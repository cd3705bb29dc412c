"""The door to attention by hand: keeps a tape of operations from each product on.

A dispatch mode sees every operation below Python: einsum, matmul and `@` arrive as views and
products. The product of two tensors that are no parameters begins a tape (`steps.py`); where a tape
with a softmax meets values in a second product, and its rows sum to at most one, that is a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.errors import ArgumentError
from heedful.ops.log_sum_exp import asked
from heedful.recorder.doors import without_mode
from heedful.recorder.doors.tape_steps import (
    MOVES,
    PRODUCTS,
    Held,
    Kind,
    Step,
    View,
    are_map,
    copied,
    is_softmax_of,
    kind_of,
)
from heedful.recorder.tracing import TRACED, is_traced
from heedful.recording import pause

SOFTMAXES = {"_softmax", "_safe_softmax", "softmax"}
MAY_BE_ONE = {*SOFTMAXES, "_log_softmax", "log_softmax", "exp", "exp_", "exp2", "exp2_"}
# After a softmax these leave its rows a map
HARMLESS = {"clone", "_to_copy", "native_dropout"}
COPIES = {"_to_copy", "clone"}  # of a parameter, as autocast makes them: still a parameter
UNMET = "weights of a softmax of queries times keys that met no values in a product"
NO_MAP = "weights whose rows do not sum to one, as after an entmax or a gate"
NESTED = "nested tensors, whose sequences have no common shape"


class Meeting(NamedTuple):
    """Weights that have met values.

    softmax: the step that made the weights; what the axes of a map are is read off it.
    weights: what the product with values was given of the weights, (…, N, M), or its transpose.
    query (b, n, d), key (b, m, d): copies of the two factors of the tape's product.
    value (…, M, v), output (…, N, v): of the second product; the output is None where that product
        added something else. A call that is kept has neither.
    """

    softmax: Step
    weights: View
    query: Tensor
    key: Tensor
    value: Tensor | None
    output: Tensor | None

    @property
    def has_product(self) -> bool:
        """Whether the tape begins with a product; else with a softmax of anything."""
        return self.softmax.product is not self.softmax

    def used(self) -> Tensor:
        """The weights as they met values, run again; those of no product are kept themselves."""
        return self.weights.value({}) if self.has_product else self.query


class Tape(TorchDispatchMode):
    """Watches the operations of a model's forward passes.

    Args:
        parameters: of the model, with its buffers; a product with one of them begins no tape.
        is_here: tells whether operations are the model's own now.
        name: gives the name of the module that runs.
        see: is called with each `Meeting`.
        miss: is called with the name of a module and the reason where something like attention has
            no map.
        fused: for the name of each kernel that is attention as a whole, a function to call with its
            result and its arguments by name.
    """

    supports_higher_order_operators = True

    def __init__(
        self, parameters: Iterable[Tensor], is_here: Callable[[], bool], name: Callable[[], str],
        see: Callable[[Meeting], None], miss: Callable[[str, str], None],
        fused: Mapping[str, Callable[[Any, dict[str, Any]], None]],
    ) -> None:  # fmt: skip
        super().__init__()
        self.is_here, self.name, self.see, self.miss, self.fused = is_here, name, see, miss, fused
        tensors = [one for one in parameters if _is_dense(one)]
        self._parameters = {one.untyped_storage()._cdata for one in tensors}
        self._buffers = {
            one.untyped_storage()._cdata for one in tensors if not isinstance(one, nn.Parameter)
        }
        self._steps: dict[int, tuple[StorageWeakRef, Step]] = {}  # by the address of a storage
        self._copies: dict[int, StorageWeakRef] = {}  # of parameters
        self._noise: dict[int, StorageWeakRef] = {}  # drawn at random, for dropout
        self._begun: list[tuple[str, Step]] = []  # softmaxes of products
        self._joined: set[int] = set()  # products of softmaxes that went into another's weights
        self._composites = without_mode.Composites()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled while it watches, so dynamo need not be kept from it."""
        return False

    def end_pass(self) -> None:
        """Let go of all tapes, and tell which softmaxes met no values."""
        met = {id(softmax.product) for _, softmax in self._begun if softmax.met}
        for name, softmax in self._begun:
            if id(softmax.product) not in met | self._joined:
                self.miss(name, UNMET)
        for table in (self._steps, self._copies, self._noise, self._begun, self._joined):
            table.clear()

    def end(self) -> None:
        """Watch nothing any more: it may still stand in the stack of another thread."""
        self.end_pass()
        self.is_here = lambda: False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        kind = kind_of(function)
        if kind.is_view:
            return function(*arguments, **keywords)
        if pause.thread.is_on or not self.is_here():
            return without_mode.run(function, arguments, keywords, kind.name)
        if self._is_to_be_taken_apart(function, kind, arguments) and not types:
            with self:
                return self._composites.run(function, arguments, keywords)
        made = without_mode.run(function, asked(kind.name, arguments), keywords, kind.name)
        pause.thread.is_on = True
        try:
            self._follow(function, kind, arguments, keywords, made)
        except ArgumentError:  # `record` promises to raise it
            raise
        except Exception as error:  # it must not end the model's own forward pass
            self.miss(self.name(), f"{error} ({type(error).__name__})")
        finally:
            pause.thread.is_on = False
        return made

    def _is_to_be_taken_apart(self, function: Any, kind: Kind, arguments: tuple) -> bool:
        """Whether it consists of other operations, as many do in inference mode; a linear layer is
        left whole, as its parts may add up in another order."""
        if not kind.is_composite:
            return False
        is_layer = kind.name == "linear" and self._is_parameter(arguments[1])
        return not (is_layer or without_mode.has_own_kernel(function, arguments))

    def _follow(
        self, function: Any, kind: Kind, arguments: tuple, keywords: dict, made: Any
    ) -> None:
        name = kind.name
        if name in self.fused:
            return self.fused[name](made, dict(zip(kind.names, arguments, strict=False)) | keywords)
        if name.startswith("bernoulli"):
            return _note(self._noise, made)
        if name == "linear":  # as a product with a parameter
            return None
        if name in PRODUCTS:
            return self._multiply(function, name, arguments, keywords, made)
        tensors = [one for one in _flat((arguments, *keywords.values())) if isinstance(one, Tensor)]
        steps = [step for one in tensors if (step := self._step(one)) is not None]
        if kind.writes is not None:
            return self._write(function, kind, arguments, keywords, bool(steps))
        if not steps:
            if name in COPIES and self._is_parameter(tensors[0]):
                _note(self._copies, made)
            elif name in SOFTMAXES and made.is_nested:
                self.miss(self.name(), NESTED)
            elif name in SOFTMAXES and _is_dense(made) and made.ndim > 1:
                self._begin_at_softmax(function, arguments, made)
            return None
        if name.endswith("_like") or name.startswith("new_"):
            return None
        place = 0 if isinstance(made, list | tuple) else None
        result = made if place is None else made[0]
        if not _is_dense(result) or not result.is_floating_point():
            return None
        return self._append(function, name, arguments, keywords, result, place, tensors)

    def _append(
        self, function: Any, name: str, arguments: tuple, keywords: dict, result: Tensor,
        place: int | None, tensors: list[Tensor],
    ) -> None:  # fmt: skip
        """Append an operation to the tape of its largest operand, or of one that has a softmax."""
        views = [view for one in tensors if (view := self._view(one)) is not None]
        lead = max(views, key=lambda one: (one.step.softmax is not None, math.prod(one.size)))
        before = lead.step
        softened = {id(one.step.product) for one in views if one.step.softmax is not None}
        self._joined |= softened - {id(before.product)}
        step = Step(
            function, self._tied(arguments), self._tied(keywords), place,
            tuple(result.shape), result.stride(), result.dtype,
            product=before.product, softmax=before.softmax, is_dropped=before.is_dropped,
            is_plain=before.is_plain and name not in MOVES and lead.is_whole
            and lead.size == tuple(result.shape) and lead.stride == result.stride(),
            is_map=before.is_map and name in HARMLESS,
        )  # fmt: skip
        if name == "native_dropout" or (name == "mul" and any(map(self._is_noise, tensors))):
            first = next(one for one in step.arguments if isinstance(one, View))
            step.function, step.arguments = torch.ops.aten.clone.default, (first,)
            step.keywords, step.place, step.is_dropped, step.is_map = {}, None, True, before.is_map
        self._keep(result, self._softened(step, name))

    def _softened(self, step: Step, name: str) -> Step:
        """The step, noted if it is a softmax or an exponential."""
        if name in MAY_BE_ONE:
            step.softmax, step.is_map, step.met = step, name in SOFTMAXES, False
            if "log" not in name:  # as a loss takes it
                self._begun.append((self.name(), step))
        return step

    def _write(
        self, function: Any, kind: Kind, arguments: tuple, keywords: dict, has_steps: bool
    ) -> None:
        """Append an operation that has written into one of its arguments."""
        target: Any = arguments[0] if arguments else None
        if _is_dense(target):  # a buffer that is written into may be a cache of keys
            self._parameters -= {target.untyped_storage()._cdata} & self._buffers
        view = self._view(target)
        if view is None or not kind.name.endswith("_"):  # other written arguments have no tape
            for written in (target, *keywords.values()) if has_steps else ():
                if _is_dense(written):
                    self._steps.pop(written.untyped_storage()._cdata, None)
            return
        before = view.step
        before.uses += 1
        step = Step(
            function, (None, *self._tied(arguments[1:])), self._tied(keywords), None,
            before.shape, before.stride, before.dtype, view, before.product, before.softmax,
            before.is_plain, before.is_dropped,
        )  # fmt: skip
        self._keep(target, self._softened(step, kind.name))

    def _begin_at_softmax(self, function: Any, arguments: tuple, made: Tensor) -> None:
        """Begin a tape at a softmax of scores that no product has made."""
        step = Step(
            function, (None, *arguments[1:]), {}, None,
            tuple(made.shape), made.stride(), made.dtype, is_map=True,
        )  # fmt: skip
        step.softmax = step
        self._keep(made, step)

    def _multiply(
        self, function: Any, name: str, arguments: tuple, keywords: dict, made: Tensor
    ) -> None:
        """Begin a tape at a product, or end one."""
        at = PRODUCTS[name]
        factors = arguments[at : at + 2]
        if any(map(self._is_parameter, factors)) or not all(map(_is_dense, factors)):
            return
        if is_traced():  # copies would stand in the graph
            self.miss(self.name(), TRACED)
            return
        if "out" in keywords:  # what is run again makes a tensor of its own
            function, keywords = function.overloadpacket.default, {**keywords}
            del keywords["out"]
        steps = [self._step(one) for one in factors]
        are_weights = [step is not None and step.softmax is not None for step in steps]
        if any(are_weights):
            if all(are_weights):  # the values of one of them came through a gate
                are_weights = [
                    step is not None and step.softmax is not step.product for step in steps
                ]
            if not all(are_weights):
                adds = at == 1 and bool(arguments[0].any())  # something to weights times values
                self._meet(factors, are_weights.index(True), None if adds else made)
            return
        held = tuple(Held(one) if isinstance(one, Tensor) else one for one in arguments)
        step = Step(
            function, held, dict(keywords), None, tuple(made.shape), made.stride(), made.dtype
        )
        step.is_plain = made.is_contiguous()
        self._keep(made, step)

    def _meet(self, factors: tuple[Tensor, Tensor], place: int, made: Tensor | None) -> None:
        """Tell of weights that have met values, if they are a map."""
        weights, value = factors if place == 0 else (factors[1].mT, factors[0].mT)
        view = self._view(weights)
        softmax = None if view is None else view.step.softmax
        if view is None or softmax is None or softmax.met:
            return
        if softmax.product is softmax and not view.size[-1] > 1:
            return  # one weight for each row is a gate
        softmax.met = True
        if view.step.is_dropped and softmax.product is not softmax:
            weights = view.value({})  # as dropout does not leave them
        if not (is_softmax_of(view) or are_map(weights)):
            self.miss(self.name(), NO_MAP)
            return
        output = made if place == 0 or made is None else made.mT
        query, key = copied(softmax.product) or (weights.detach().clone(),) * 2
        self.see(Meeting(softmax, view, query, key, value, output))

    def _step(self, tensor: Any) -> Step | None:
        """The step that made a tensor's storage."""
        if not _is_dense(tensor):
            return None
        known = self._steps.get(tensor.untyped_storage()._cdata)
        if known is None or known[0].expired() or known[1].dtype != tensor.dtype:
            return None  # a view by another type, as the real part of complex numbers
        return known[1]

    def _view(self, tensor: Any) -> View | None:
        step = self._step(tensor)
        if step is None:
            return None
        return View(step, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _keep(self, tensor: Tensor, step: Step) -> None:
        storage = tensor.untyped_storage()
        self._steps[storage._cdata] = StorageWeakRef(storage), step
        if len(self._steps) > 256:
            self._steps = {at: one for at, one in self._steps.items() if not one[0].expired()}

    def _tied(self, value: Any) -> Any:
        """Arguments as a step keeps them."""
        if isinstance(value, Tensor):
            view = self._view(value)
            if view is None:
                return Held(value)
            view.step.uses += 1
            return view
        if isinstance(value, dict):
            return {name: self._tied(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._tied(one) for one in value)
        return value

    def _is_parameter(self, tensor: Any) -> bool:
        if not _is_dense(tensor):
            return False
        at = tensor.untyped_storage()._cdata
        return at in self._parameters or _is_noted(self._copies, at)

    def _is_noise(self, tensor: Tensor) -> bool:
        return _is_dense(tensor) and _is_noted(self._noise, tensor.untyped_storage()._cdata)


def _is_dense(tensor: Any) -> bool:
    """Whether it is a tensor of torch's own class with strides."""
    is_torchs = type(tensor) in (Tensor, nn.Parameter)
    return is_torchs and tensor.layout is torch.strided and not tensor.is_nested


def _note(table: dict[int, StorageWeakRef], tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    table[storage._cdata] = StorageWeakRef(storage)


def _is_noted(table: dict[int, StorageWeakRef], at: int) -> bool:
    return at in table and not table[at].expired()


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)
    else:
        yield value
