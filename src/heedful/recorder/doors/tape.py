"""The door to attention by hand (products and a softmax): records a tape after each product.

A dispatch mode intercepts every operation below Python, where einsum, matmul and `@` are views and
products. A product of two tensors that are not parameters begins a tape (`tape_steps.py`). When a
second product multiplies the softmax weights of a tape with values, the tape becomes a call.
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
from heedful.ops.log_sum_exp import request_lse
from heedful.recorder.doors import outside_mode
from heedful.recorder.doors.tape_steps import (
    MOVES,
    PRODUCTS,
    Kind,
    Step,
    StepInput,
    View,
    are_map,
    copy_factors,
    is_softmax_output,
    kind_of,
)
from heedful.recorder.tracing import TRACED, is_traced
from heedful.recording import pause

SOFTMAXES = {"_softmax", "_safe_softmax", "softmax"}
EXPONENTIALS = {*SOFTMAXES, "_log_softmax", "log_softmax", "exp", "exp_", "exp2", "exp2_"}
# Operations after which the rows of a softmax are still a map
HARMLESS = {"clone", "_to_copy", "native_dropout"}
COPIES = {"_to_copy", "clone"}  # a copy of a parameter, as by autocast, counts as a parameter
UNUSED = "weights of a softmax of queries times keys that no product multiplied with values"
NO_MAP = "weights whose rows do not sum to one, as after an entmax or a gate"
NESTED = "nested tensors, whose sequences have no common shape"


class TapedCall(NamedTuple):
    """A call of attention by hand: a tape whose weights were multiplied with values.

    softmax: the step of the softmax, whose axes are those of the map.
    weights: the factor of the second product, (…, N, M), or its transpose.
    query (…, n, d), key (…, m, d): copies of the factors of the tape's product, which a model may
        have in the other order; both are the weights if there is no product.
    value (…, M, v), output (…, N, v): of the second product; output is None if that product also
        adds another tensor. Both are None in a recording.
    """

    softmax: Step
    weights: View
    query: Tensor
    key: Tensor
    value: Tensor | None
    output: Tensor | None

    @property
    def has_product(self) -> bool:
        """Whether the tape begins with a product; else it begins with the softmax."""
        return self.softmax.product is not self.softmax

    def used(self) -> Tensor:
        """Replay the factor of the second product; it is stored if the tape has no product."""
        return self.weights.value({}) if self.has_product else self.query


class Tape(TorchDispatchMode):
    """A dispatch mode that watches the operations of a model's forward passes.

    Args:
        parameters: the parameters and buffers of the model; a product with one begins no tape.
        is_followed: returns whether to follow the operation that runs now.
        name: returns the name of the running module.
        report: called with each `TapedCall`.
        miss: called with the name of a module and the reason why its attention has no map.
        fused: by kernel, a function to call with its outputs and a dictionary of its arguments.
    """

    supports_higher_order_operators = True

    def __init__(
        self, parameters: Iterable[Tensor], is_followed: Callable[[], bool],
        name: Callable[[], str], report: Callable[[TapedCall], None],
        miss: Callable[[str, str], None], fused: Mapping[str, Callable[[Any, dict], None]],
    ) -> None:  # fmt: skip
        super().__init__()
        self.is_followed, self.name, self.report = is_followed, name, report
        self.miss, self.fused = miss, fused
        tensors = [tensor for tensor in parameters if _is_dense(tensor)]
        self._parameters = {_storage_id(tensor) for tensor in tensors}
        buffers = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
        self._buffers = {_storage_id(tensor) for tensor in buffers}
        self._steps: dict[int, tuple[StorageWeakRef, Step]] = {}  # by storage
        self._copies: dict[int, StorageWeakRef] = {}  # copies of parameters
        self._noise: dict[int, StorageWeakRef] = {}  # random masks of dropout
        self._softmaxes: list[tuple[str, Step]] = []  # softmaxes of products
        self._merged: set[int] = set()  # products whose softmax is part of another call's weights
        self._composites = outside_mode.Composites()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled inside the mode, so dynamo need not be disabled."""
        return False

    def end_pass(self) -> None:
        """Release all tapes, and report the softmaxes that no product multiplied with values."""
        with_call = {id(softmax.product) for _, softmax in self._softmaxes if softmax.has_call}
        for name, softmax in self._softmaxes:
            if id(softmax.product) not in with_call | self._merged:
                self.miss(name, UNUSED)
        for table in (self._steps, self._copies, self._noise, self._softmaxes, self._merged):
            table.clear()

    def end(self) -> None:
        """Stop watching; the mode may still be on the stack of another thread."""
        self.end_pass()
        self.is_followed = lambda: False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        kind = kind_of(function)
        if kind.is_view:
            return function(*arguments, **keywords)
        if pause.thread.is_paused or not self.is_followed():
            return outside_mode.run(function, arguments, keywords, kind.name)
        if self._is_decomposed(function, kind, arguments) and not types:
            with self:
                return self._composites.run(function, arguments, keywords)
        outputs = outside_mode.run(function, request_lse(kind.name, arguments), keywords, kind.name)
        pause.thread.is_paused = True
        try:
            self._follow(function, kind, arguments, keywords, outputs)
        except ArgumentError:  # `record` promises to raise it
            raise
        except Exception as error:  # it must not end the forward pass of the model
            self.miss(self.name(), f"{error} ({type(error).__name__})")
        finally:
            pause.thread.is_paused = False
        return outputs

    def _is_decomposed(self, function: Any, kind: Kind, arguments: tuple) -> bool:
        """Whether to decompose the operation; a linear layer is not, as rounding might change."""
        if not kind.is_composite:
            return False
        is_layer = kind.name == "linear" and self._is_parameter(arguments[1])
        return not (is_layer or outside_mode.has_own_kernel(function, arguments))

    def _follow(
        self, function: Any, kind: Kind, arguments: tuple, keywords: dict, outputs: Any
    ) -> None:
        name = kind.name
        if name in self.fused:
            inputs = dict(zip(kind.names, arguments, strict=False)) | keywords
            return self.fused[name](outputs, inputs)
        if name.startswith("bernoulli"):
            return _add_storage(self._noise, outputs)
        if name == "linear":  # a product with a parameter
            return None
        if name in PRODUCTS:
            return self._multiply(function, name, arguments, keywords, outputs)
        values = _flat((arguments, *keywords.values()))
        tensors = [value for value in values if isinstance(value, Tensor)]
        steps = [step for tensor in tensors if (step := self._step(tensor)) is not None]
        if kind.writes is not None:
            return self._write(function, kind, arguments, keywords, bool(steps))
        if not steps:
            if name in COPIES and self._is_parameter(tensors[0]):
                _add_storage(self._copies, outputs)
            elif name in SOFTMAXES and outputs.is_nested:
                self.miss(self.name(), NESTED)
            elif name in SOFTMAXES and _is_dense(outputs) and outputs.ndim > 1:
                self._begin_at_softmax(function, arguments, outputs)
            return None
        if name.endswith("_like") or name.startswith("new_"):
            return None
        place = 0 if isinstance(outputs, list | tuple) else None
        result = outputs if place is None else outputs[0]
        if not _is_dense(result) or not result.is_floating_point():
            return None
        return self._append(function, name, arguments, keywords, result, place, tensors)

    def _append(
        self, function: Any, name: str, arguments: tuple, keywords: dict, result: Tensor,
        place: int | None, tensors: list[Tensor],
    ) -> None:  # fmt: skip
        """Append an operation to the tape of its operand with a softmax, else the largest one."""
        views = [view for tensor in tensors if (view := self._view(tensor)) is not None]
        lead = max(views, key=lambda view: (view.step.softmax is not None, math.prod(view.size)))
        before = lead.step
        with_softmax = {id(view.step.product) for view in views if view.step.softmax is not None}
        self._merged |= with_softmax - {id(before.product)}
        step = Step(
            function, self._stored(arguments), self._stored(keywords), place,
            tuple(result.shape), result.stride(), result.dtype,
            product=before.product, softmax=before.softmax, is_dropped=before.is_dropped,
            is_plain=before.is_plain and name not in MOVES and lead.is_whole
            and lead.size == tuple(result.shape) and lead.stride == result.stride(),
            is_map=before.is_map and name in HARMLESS,
        )  # fmt: skip
        if name == "native_dropout" or (name == "mul" and any(map(self._is_noise, tensors))):
            first = next(value for value in step.arguments if isinstance(value, View))
            step.function, step.arguments = torch.ops.aten.clone.default, (first,)
            step.keywords, step.place, step.is_dropped, step.is_map = {}, None, True, before.is_map
        self._add(result, step, name)

    def _add(self, tensor: Tensor, step: Step, name: str) -> None:
        """Add the step that computed a tensor; `name` is that of its operation."""
        if name in EXPONENTIALS:
            step.softmax, step.is_map, step.has_call = step, name in SOFTMAXES, False
            if "log" not in name:  # a log-softmax is mostly a loss
                self._softmaxes.append((self.name(), step))
        self._set_step(tensor, step)

    def _write(
        self, function: Any, kind: Kind, arguments: tuple, keywords: dict, has_steps: bool
    ) -> None:
        """Append an in-place operation."""
        target: Any = arguments[0] if arguments else None
        if _is_dense(target):  # a buffer that is written into may be a cache of keys
            self._parameters -= {_storage_id(target)} & self._buffers
        view = self._view(target)
        if view is None or not kind.name.endswith("_"):  # for example, an argument `out`
            for written in (target, *keywords.values()) if has_steps else ():
                if _is_dense(written):
                    self._steps.pop(_storage_id(written), None)
            return
        before = view.step
        before.uses += 1
        step = Step(
            function, (None, *self._stored(arguments[1:])), self._stored(keywords), None,
            before.shape, before.stride, before.dtype, view, before.product, before.softmax,
            before.is_plain, before.is_dropped,
        )  # fmt: skip
        self._add(target, step, kind.name)

    def _begin_at_softmax(self, function: Any, arguments: tuple, result: Tensor) -> None:
        """Begin a tape at a softmax whose scores are not a product."""
        step = Step(
            function, (None, *arguments[1:]), {}, None,
            tuple(result.shape), result.stride(), result.dtype, is_map=True,
        )  # fmt: skip
        step.softmax = step
        self._set_step(result, step)

    def _multiply(
        self, function: Any, name: str, arguments: tuple, keywords: dict, result: Tensor
    ) -> None:
        """Begin or end a tape at a product."""
        first = PRODUCTS[name]
        factors = arguments[first : first + 2]
        if any(map(self._is_parameter, factors)) or not all(map(_is_dense, factors)):
            return
        if is_traced():  # copies would become part of the graph
            self.miss(self.name(), TRACED)
            return
        if "out" in keywords:  # a replay must not write into the model's tensor
            function, keywords = function.overloadpacket.default, {**keywords}
            del keywords["out"]
        steps = [self._step(factor) for factor in factors]
        are_weights = [step is not None and step.softmax is not None for step in steps]
        if any(are_weights):
            if all(are_weights):  # the values of one of them come from a gate with a softmax
                are_weights = [
                    step is not None and step.softmax is not step.product for step in steps
                ]
            if not all(are_weights):
                adds = first == 1 and bool(arguments[0].any())  # as in addmm
                self._report(factors, are_weights.index(True), None if adds else result)
            return
        stored = tuple(StepInput(arg) if isinstance(arg, Tensor) else arg for arg in arguments)
        shape, stride = tuple(result.shape), result.stride()
        step = Step(function, stored, dict(keywords), None, shape, stride, result.dtype)
        step.is_plain = result.is_contiguous()
        self._set_step(result, step)

    def _report(self, factors: tuple[Tensor, Tensor], place: int, result: Tensor | None) -> None:
        """Report a product of weights, the factor at `place`, with values, if they are a map."""
        weights, value = factors if place == 0 else (factors[1].mT, factors[0].mT)
        view = self._view(weights)
        softmax = None if view is None else view.step.softmax
        if view is None or softmax is None or softmax.has_call:
            return
        if softmax.product is softmax and not view.size[-1] > 1:
            return  # a gate has one weight per row
        softmax.has_call = True
        if view.step.is_dropped and softmax.product is not softmax:
            weights = view.value({})  # without dropout
        if not (is_softmax_output(view) or are_map(weights)):
            self.miss(self.name(), NO_MAP)
            return
        output = result if place == 0 or result is None else result.mT
        query, key = copy_factors(softmax.product) or (weights.detach().clone(),) * 2
        self.report(TapedCall(softmax, view, query, key, value, output))

    def _step(self, tensor: Any) -> Step | None:
        """Return the step that computed a tensor's storage."""
        if not _is_dense(tensor):
            return None
        entry = self._steps.get(_storage_id(tensor))
        if entry is None or entry[0].expired() or entry[1].dtype != tensor.dtype:
            return None  # the dtype differs for a view such as the real part of complex numbers
        return entry[1]

    def _view(self, tensor: Any) -> View | None:
        step = self._step(tensor)
        if step is None:
            return None
        return View(step, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _set_step(self, tensor: Tensor, step: Step) -> None:
        storage = tensor.untyped_storage()
        self._steps[storage._cdata] = StorageWeakRef(storage), step
        if len(self._steps) > 256:
            self._steps = {i: pair for i, pair in self._steps.items() if not pair[0].expired()}

    def _stored(self, value: Any) -> Any:
        """Replace the tensors among arguments by `View` or `StepInput`."""
        if isinstance(value, Tensor):
            view = self._view(value)
            if view is None:
                return StepInput(value)
            view.step.uses += 1
            return view
        if isinstance(value, dict):
            return {name: self._stored(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._stored(part) for part in value)
        return value

    def _is_parameter(self, tensor: Any) -> bool:
        if not _is_dense(tensor):
            return False
        storage_id = _storage_id(tensor)
        return storage_id in self._parameters or _is_alive(self._copies, storage_id)

    def _is_noise(self, tensor: Tensor) -> bool:
        return _is_dense(tensor) and _is_alive(self._noise, _storage_id(tensor))


def _is_dense(tensor: Any) -> bool:
    """Whether the value is a strided tensor of no subclass but nn.Parameter."""
    is_torchs = type(tensor) in (Tensor, nn.Parameter)
    return is_torchs and tensor.layout is torch.strided and not tensor.is_nested


def _storage_id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _add_storage(table: dict[int, StorageWeakRef], tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    table[storage._cdata] = StorageWeakRef(storage)


def _is_alive(table: dict[int, StorageWeakRef], storage_id: int) -> bool:
    return storage_id in table and not table[storage_id].expired()


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value
