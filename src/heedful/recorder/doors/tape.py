"""The door to attention by hand, which a model writes out as matrix products and a softmax.

The dispatch mode `Tape` intercepts every operation below Python, where einsum, matmul and `@` are
views and products. A product of two activations begins a tape: the steps that lead from it to the
weights (`tape_steps.py`). A second product, of weights and values, turns the tape into a call.
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
    Schema,
    Step,
    StepInput,
    View,
    copy_factors,
    is_softmax_output,
    rows_are_weights,
    schema_of,
)
from heedful.recorder.tracing import TRACED, is_traced
from heedful.recording import pause

SOFTMAXES = {"_softmax", "_safe_softmax", "softmax"}
EXPONENTIALS = {*SOFTMAXES, "_log_softmax", "log_softmax", "exp", "exp_", "exp2", "exp2_"}
# Operations after which the rows of a softmax are still weights
HARMLESS = {"clone", "_to_copy", "native_dropout"}
COPIES = {"_to_copy", "clone"}  # copies of parameters, as by autocast, count as parameters
UNUSED = "softmax weights of queries × keys that no matrix product multiplied with values"
NO_MAP = "weights that are negative, or sum to more than one in a row, as after a rescaling"
NESTED = "nested tensors, whose sequences have no common shape"


class TapedCall(NamedTuple):
    """A call of attention by hand: a tape whose weights were multiplied with values.

    softmax: the step of the softmax; the map has the axes of its result.
    weights: the weights (…, N, M) that were multiplied with values.
    first (…, n, d), second (…, m, d): copies of the factors of the first product, query first or
        key first; without a product, both are the weights.
    value (…, M, v), output (…, N, v): of the second product. Output is None if the product also
        adds another tensor. Both are None once an `Observed` holds them.
    """

    softmax: Step
    weights: View
    first: Tensor
    second: Tensor
    value: Tensor | None
    output: Tensor | None

    @property
    def has_product(self) -> bool:
        """Whether the tape begins with a product. If not, it begins with the softmax."""
        return self.softmax.product is not self.softmax

    def used(self) -> Tensor:
        """Return the weights: replayed, or the stored copy if the tape has no product."""
        return self.weights.value({}) if self.has_product else self.first


class Tape(TorchDispatchMode):
    """A dispatch mode that follows the operations of a model's forward passes.

    Args:
        parameters: parameters and buffers of the model. A product with one of them begins no tape.
        is_followed: returns whether to follow the operation that runs now.
        name: returns the name of the running module.
        report: called with each `TapedCall`.
        miss: called with the name of a module and the reason why its attention is not recorded.
        fused: maps a kernel's name to a function of its outputs and a dictionary of its arguments.
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
        self._softmaxes: list[tuple[str, Step]] = []  # each with the name of its module
        self._merged: set[int] = set()  # products whose tapes were merged into another one
        self._composites = outside_mode.Composites()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled inside the mode, so dynamo can stay enabled."""
        return False

    def end_pass(self) -> None:
        """Release all tapes. Report each softmax after a product as missed if no call uses it."""
        with_call = {id(softmax.product) for _, softmax in self._softmaxes if softmax.has_call}
        for name, softmax in self._softmaxes:
            if id(softmax.product) not in with_call | self._merged:
                self.miss(name, UNUSED)
        for table in (self._steps, self._copies, self._noise, self._softmaxes, self._merged):
            table.clear()

    def end(self) -> None:
        """Follow no operation from now on: another thread may still have the mode on its stack."""
        self.end_pass()
        self.is_followed = lambda: False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        schema = schema_of(function)
        if schema.is_view:
            return function(*arguments, **keywords)
        if pause.thread.is_paused or not self.is_followed():
            return outside_mode.run(function, arguments, keywords, schema.name)
        if self._is_decomposed(function, schema, arguments) and not types:
            with self:
                return self._composites.run(function, arguments, keywords)
        name = schema.name
        outputs = outside_mode.run(function, request_lse(name, arguments), keywords, name)
        pause.thread.is_paused = True
        try:
            self._follow(function, schema, arguments, keywords, outputs)
        except ArgumentError:  # `record` promises to raise it
            raise
        except Exception as error:  # the forward pass of the model must continue
            self.miss(self.name(), f"{error} ({type(error).__name__})")
        finally:
            pause.thread.is_paused = False
        return outputs

    def _is_decomposed(self, function: Any, schema: Schema, arguments: tuple) -> bool:
        """Whether to decompose an operation. A linear layer is kept: its rounding could change."""
        if not schema.is_composite:
            return False
        is_layer = schema.name == "linear" and self._is_parameter(arguments[1])
        return not (is_layer or outside_mode.has_own_kernel(function, arguments))

    def _follow(
        self, function: Any, schema: Schema, arguments: tuple, keywords: dict, outputs: Any
    ) -> None:
        name = schema.name
        if name in self.fused:
            inputs = dict(zip(schema.argument_names, arguments, strict=False)) | keywords
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
        if schema.written_index is not None:
            return self._write(function, schema, arguments, keywords, bool(steps))
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
        output_index = 0 if isinstance(outputs, list | tuple) else None
        result = outputs if output_index is None else outputs[0]
        if not _is_dense(result) or not result.is_floating_point():
            return None
        return self._append(function, name, arguments, keywords, result, output_index, tensors)

    def _append(
        self, function: Any, name: str, arguments: tuple, keywords: dict, result: Tensor,
        output_index: int | None, tensors: list[Tensor],
    ) -> None:  # fmt: skip
        """Append an operation to the tape of one operand: one with a softmax, else the largest."""
        views = [view for tensor in tensors if (view := self._view(tensor)) is not None]
        main = max(views, key=lambda view: (view.step.softmax is not None, math.prod(view.size)))
        main_step = main.step
        with_softmax = {id(view.step.product) for view in views if view.step.softmax is not None}
        self._merged |= with_softmax - {id(main_step.product)}
        step = Step(
            function, self._stored(arguments), self._stored(keywords), output_index,
            tuple(result.shape), result.stride(), result.dtype,
            product=main_step.product, softmax=main_step.softmax, is_dropped=main_step.is_dropped,
            is_plain=main_step.is_plain and name not in MOVES and main.is_whole
            and main.size == tuple(result.shape) and main.stride == result.stride(),
            is_map=main_step.is_map and name in HARMLESS,
        )  # fmt: skip
        if name == "native_dropout" or (name == "mul" and any(map(self._is_noise, tensors))):
            first = next(value for value in step.arguments if isinstance(value, View))
            step.function, step.arguments = torch.ops.aten.clone.default, (first,)
            step.keywords, step.output_index, step.is_dropped = {}, None, True
            step.is_map = main_step.is_map
        self._add(result, step, name)

    def _add(self, tensor: Tensor, step: Step, name: str) -> None:
        """Store the step that computed a tensor; the operation `name` may be a softmax."""
        if name in EXPONENTIALS:
            step.softmax, step.is_map, step.has_call = step, name in SOFTMAXES, False
            if "log" not in name:  # a log-softmax is usually part of a loss
                self._softmaxes.append((self.name(), step))
        self._set_step(tensor, step)

    def _write(
        self, function: Any, schema: Schema, arguments: tuple, keywords: dict, has_steps: bool
    ) -> None:
        """Append an in-place operation; after other writes, the written tensors have no tape."""
        target: Any = arguments[0] if arguments else None
        if _is_dense(target):  # a buffer that the model writes into may be a cache of keys
            self._parameters -= {_storage_id(target)} & self._buffers
        view = self._view(target)
        if view is None or not schema.name.endswith("_"):  # for example, an argument `out`
            for written in (target, *keywords.values()) if has_steps else ():
                if _is_dense(written):
                    self._steps.pop(_storage_id(written), None)
            return
        main_step = view.step
        main_step.uses += 1
        step = Step(
            function, (None, *self._stored(arguments[1:])), self._stored(keywords), None,
            main_step.shape, main_step.stride, main_step.dtype, view, main_step.product,
            main_step.softmax, main_step.is_plain, main_step.is_dropped,
        )  # fmt: skip
        self._add(target, step, schema.name)

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
        """Begin a tape at a product, or complete a call if a factor is weights."""
        start = PRODUCTS[name]
        factors = arguments[start : start + 2]
        if any(map(self._is_parameter, factors)) or not all(map(_is_dense, factors)):
            return
        if is_traced():  # copies would become part of the traced graph
            self.miss(self.name(), TRACED)
            return
        if "out" in keywords:  # a replay must not write into the model's tensor
            function, keywords = function.overloadpacket.default, {**keywords}
            del keywords["out"]
        steps = [self._step(factor) for factor in factors]
        are_weights = [step is not None and step.softmax is not None for step in steps]
        if any(are_weights):
            if all(are_weights):  # one factor is the values, gated by a softmax
                are_weights = [
                    step is not None and step.softmax is not step.product for step in steps
                ]
            if not all(are_weights):
                adds = start == 1 and bool(arguments[0].any())  # as in addmm
                self._report(factors, are_weights.index(True), None if adds else result)
            return
        stored = tuple(StepInput(arg) if isinstance(arg, Tensor) else arg for arg in arguments)
        shape, stride = tuple(result.shape), result.stride()
        step = Step(function, stored, dict(keywords), None, shape, stride, result.dtype)
        step.is_plain = result.is_contiguous()
        self._set_step(result, step)

    def _report(
        self, factors: tuple[Tensor, Tensor], weights_index: int, result: Tensor | None
    ) -> None:
        """Report `factors[weights_index]` times values as a call, if these weights are a map."""
        weights, value = factors if weights_index == 0 else (factors[1].mT, factors[0].mT)
        view = self._view(weights)
        softmax = None if view is None else view.step.softmax
        if view is None or softmax is None or softmax.has_call:
            return
        if softmax.product is softmax and not view.size[-1] > 1:
            return  # a gate has one weight per row
        softmax.has_call = True
        if view.step.is_dropped and softmax.product is not softmax:
            weights = view.value({})  # without dropout
        if not (is_softmax_output(view) or rows_are_weights(weights)):
            self.miss(self.name(), NO_MAP)
            return
        output = result if weights_index == 0 or result is None else result.mT
        first, second = copy_factors(softmax.product) or (weights.detach().clone(),) * 2
        self.report(TapedCall(softmax, view, first, second, value, output))

    def _step(self, tensor: Any) -> Step | None:
        """Return the step that computed the storage of a tensor; None if there is none."""
        if not _is_dense(tensor):
            return None
        entry = self._steps.get(_storage_id(tensor))
        if entry is None or entry[0].expired() or entry[1].dtype != tensor.dtype:
            return None  # another dtype: a view such as the real part of complex numbers
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
    """Whether the value is a strided `Tensor` or `nn.Parameter`, and no other subclass."""
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
