"""Probes a model: changes some inputs and compares which rows of queries and keys change.

Texts are changed at the inputs of the model, positions at the inputs of each module that attends.
One pass changes all texts (or positions) whose number has a certain bit, the next all others: after
2 · log2(size) passes, the text (or position) is known on which each row depends.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError
from heedful.recorder.axes.pass_inputs import is_no_ids, named, plain
from heedful.recorder.axes.probed_order import NONE, SEVERAL, Codes, UnsettledError, probed_order
from heedful.recorder.axes.usual_order import Order
from heedful.recorder.doors.tape_cells import Cells

# Parts of names of integer inputs that describe shapes, and must not be changed
SHAPES = ("grid", "size", "length", "shape", "offset")
ModelInputs: TypeAlias = tuple[tuple, dict[str, Any]]  # arguments and keywords
Run: TypeAlias = tuple[str, int]  # the name of a module, and the count of its call
InputHook: TypeAlias = Callable[[Run, ModelInputs], Any]
Numbers: TypeAlias = tuple[Tensor, Tensor]  # a number for each row of the queries, of the keys


class ProbedCall(NamedTuple):
    """A call of the probed pass, and the run of a module whose input positions are changed."""

    run: Run
    cells: Cells
    is_told: bool  # its layout is "told", so that only its texts are probed


class ProbeResult(NamedTuple):
    """The result of probing one call.

    texts: for each row of the queries the number of its text, or `SEVERAL` or `NONE`.
    order: the order of its axes; None if it is told, or unsettled for the reason `why`.
    """

    texts: Tensor
    order: Order | None = None
    why: str = ""


class Probing:
    """Runs a model repeatedly with changed inputs.

    calls_of: runs the model with arguments and keywords, and returns its calls.
    progress: called with the completed fraction.
    `ArgumentError` is raised if the calls change although the inputs are the same.
    """

    def __init__(
        self, model: nn.Module, inputs: ModelInputs,
        calls_of: Callable[[tuple, dict], list[ProbedCall]], progress: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.model, self.inputs, self.calls_of, self.progress = model, inputs, calls_of, progress
        self._modules = dict(model.named_modules())
        self._completed, self._passes, self._fraction = 0, 16, 0.0  # most models need 16 passes
        self.calls: list[ProbedCall] = []
        self.calls = self._run(inputs)
        for changes in self._changes(self._run(inputs)):
            if any(bool(rows.any()) for rows in changes):
                raise _not_repeatable()

    def probed(self, texts: int, dim: int) -> list[ProbeResult]:
        """Return a result for each call, for texts along dimension `dim` of the inputs."""
        of_texts = self._texts(texts, dim)
        is_all_told = all(call.is_told for call in self.calls)
        of_positions = [[] for _ in self.calls] if is_all_told else self._positions()
        results = zip(self.calls, of_texts, of_positions, strict=True)
        return [self._result(call, row_texts, probes, texts) for call, row_texts, probes in results]

    @staticmethod
    def _result(
        call: ProbedCall, row_texts: Numbers, probes: list[Numbers], texts: int
    ) -> ProbeResult:
        if call.is_told:
            return ProbeResult(row_texts[0])
        queries, keys = (
            Codes(text, torch.stack([rows[i] for rows in probes]) if probes else text[None][:0])
            for i, text in enumerate(row_texts)
        )
        try:
            return ProbeResult(row_texts[0], probed_order(call.cells, queries, keys, texts))
        except UnsettledError as error:
            return ProbeResult(row_texts[0], why=str(error))

    def _texts(self, texts: int, dim: int) -> list[Numbers]:
        """Return the text of each row of queries and keys of each call."""
        inputs = named(self.model, *self.inputs).values()
        is_list = any(isinstance(value, list | tuple) and len(value) == texts for value in inputs)

        def run_changed(bit: int, value: bool) -> list[ProbedCall]:
            def change(name: str, tensor: Tensor, index: int) -> Tensor:
                if is_list and tensor.ndim == 3:  # an image of a list
                    is_selected = bool(index >> bit & 1) == value
                    return _perturbed(name, tensor, torch.tensor(is_selected, device="cpu"))
                axis = _axis_of_texts(tensor, texts, dim)
                if axis is None:
                    return tensor
                return _perturbed(name, tensor, _selection(tensor.shape, axis, bit, value))

            return self._run(_mapped(self.inputs, change))

        return self._decoded(texts, run_changed)

    def _positions(self) -> list[list[Numbers]]:
        """Return for each call the position of each row along each axis of its module's inputs."""
        inputs: dict[Run, ModelInputs] = {}

        def copy_inputs(run: Run, module_inputs: ModelInputs) -> None:
            inputs[run] = _mapped(module_inputs, lambda name, tensor, index: tensor.clone())

        self._run(self.inputs, copy_inputs)
        widths = {call.cells.query.shape[-1] for call in self.calls}
        axes = {
            run: [
                (number, axis, tensor.shape[axis])
                for number, tensor in enumerate(_tensors(module_inputs))
                for axis in _axes_of_positions(tensor, widths)
            ]
            for run, module_inputs in inputs.items()
        }
        positions: list[list[Numbers]] = [[] for _ in self.calls]
        for turn in range(max(map(len, axes.values()), default=0)):
            selected = {run: several[turn] for run, several in axes.items() if turn < len(several)}

            def run_changed(bit: int, value: bool, selected: dict = selected) -> list[ProbedCall]:
                return self._run(self.inputs, _changing(inputs, selected, bit, value))

            numbers = self._decoded(max(size for *_, size in selected.values()), run_changed)
            for call, of_call, sides in zip(self.calls, positions, numbers, strict=True):
                if call.run in selected:
                    of_call.append(sides)
        return positions

    def _decoded(self, size: int, rerun: Callable[[int, bool], list[ProbedCall]]) -> list[Numbers]:
        """Return the number that changes each row of the queries and keys of each call."""
        bits = (size - 1).bit_length()
        self._passes = max(self._passes, self._completed + 2 * bits + 1)
        pairs = []  # for each bit, the changed rows of each call with the bit on, and off
        for bit in range(bits):
            pairs.append([self._changes(rerun(bit, value)) for value in (True, False)])
        return [
            (
                _numbers([(on[i][0], off[i][0]) for on, off in pairs], len(call.cells.query)),
                _numbers([(on[i][1], off[i][1]) for on, off in pairs], len(call.cells.key)),
            )
            for i, call in enumerate(self.calls)
        ]

    def _changes(self, calls: list[ProbedCall]) -> list[Numbers]:
        """Return which rows of queries and keys of each call differ from the first pass."""
        before, after = (
            [(call.run, call.cells.query.shape, call.cells.key.shape) for call in several]
            for several in (self.calls, calls)
        )
        if before != after:
            raise _not_repeatable()
        return [
            (_differ(first.cells.query, call.cells.query), _differ(first.cells.key, call.cells.key))
            for first, call in zip(self.calls, calls, strict=True)
        ]

    def _run(self, inputs: ModelInputs, hook: InputHook | None = None) -> list[ProbedCall]:
        """Return the calls of a pass; the hook is called before each module that attends."""
        counts: Counter[str] = Counter()

        def before(name: str, module: nn.Module, arguments: tuple, keywords: dict) -> Any:
            counts[name] += 1
            return hook and hook((name, counts[name] - 1), (arguments, keywords))

        with ExitStack() as stack:
            names = {call.run[0] for call in self.calls if hook and not call.is_told}
            for name in names:
                handle = self._modules[name].register_forward_pre_hook(
                    functools.partial(before, name), with_kwargs=True
                )
                stack.callback(handle.remove)
            try:
                calls = self.calls_of(*inputs)
            except (HeedfulError, OSError):  # such as a TimeoutError, which no input causes
                raise
            except Exception as error:
                raise ArgumentError(
                    f"inputs with which the model ends in {type(error).__name__}: {error}",
                    expected="what it was called with",
                ) from error
        self._completed += 1
        self._fraction = max(self._fraction, min(0.99, self._completed / self._passes))
        self.progress(self._fraction)
        return calls


def _not_repeatable() -> ArgumentError:
    return ArgumentError(
        "a model that does something else when it runs again",
        expected="the same calls of attention in each pass",
        cause="it draws at random, or its calls depend on the numbers that it gets",
    )


def _changing(
    inputs: Mapping[Run, ModelInputs], selected: Mapping[Run, tuple], bit: int, value: bool
) -> InputHook:
    """Return a hook that restores the inputs of each module and changes positions of one axis."""

    def change(run: Run, module_inputs: ModelInputs) -> Any:
        if run not in inputs:
            return None
        number, axis, _ = selected.get(run, (-1, 0, 0))
        tensors = iter(enumerate(_tensors(inputs[run])))

        def restore(name: str, tensor: Tensor, index: int) -> Tensor:
            tensor_number, before = next(tensors)
            if tensor_number != number:
                return before
            return _perturbed(name, before, _selection(before.shape, axis, bit, value))

        return _mapped(module_inputs, restore)

    return change


def _axis_of_texts(tensor: Tensor, texts: int, dim: int) -> int | None:
    """Return the axis of the texts, or None; ids may have texts first although vectors do not."""
    if tensor.ndim > dim and tensor.shape[dim] == texts and (tensor.ndim > 1 or dim == 0):
        return dim
    return 0 if dim and tensor.ndim == 2 and len(tensor) == texts else None


def _axes_of_positions(tensor: Tensor, widths: set[int]) -> list[int]:
    """Return the axes that may be texts or positions; none for a cache, which ends in a width."""
    if tensor.ndim > 3 and tensor.shape[-1] in widths:
        return []
    is_vectors = tensor.is_floating_point() and tensor.ndim < 4
    return [axis for axis in range(tensor.ndim - is_vectors) if tensor.shape[axis] > 1]


def _selection(shape: Sequence[int], axis: int, bit: int, value: bool) -> Tensor:
    """Return which indices along an axis have the bit equal to `value`; broadcasts to the shape."""
    is_set = (torch.arange(shape[axis], device="cpu") >> bit & 1).bool() == value
    return is_set.view([-1 if dim == axis else 1 for dim in range(len(shape))])


def _perturbed(name: str, tensor: Tensor, selection: Tensor) -> Tensor:
    """Change the selected entries: add noise, or replace ids by other ids of the tensor."""
    generator = torch.Generator("cpu").manual_seed(1)
    selection = selection.to(tensor.device).expand(tensor.shape)
    if tensor.is_floating_point():
        noise = torch.empty(tensor.shape, dtype=torch.float32, device="cpu").uniform_(
            0.5, 1.5, generator=generator
        )
        return torch.where(selection, tensor + noise.to(tensor), tensor)
    is_fixed = is_no_ids(name) or any(part in plain(name) for part in SHAPES)
    if tensor.dtype == torch.bool or tensor.ndim < 2 or is_fixed or not tensor.numel():
        return tensor
    values = tensor.unique()
    if len(values) < 2 or int(values[-1]) < 2:
        return tensor
    shift = torch.randint(1, len(values), tensor.shape, generator=generator, device="cpu")
    index = (torch.searchsorted(values, tensor) + shift.to(tensor.device)) % len(values)
    return torch.where(selection, values[index], tensor)


def _differ(rows: Tensor, again: Tensor) -> Tensor:
    return ((rows != again) & ~(rows.isnan() & again.isnan())).any(-1).cpu()


def _numbers(pairs: list[Numbers], rows: int) -> Tensor:
    """Combine the bits of each row; `pairs` has the rows that change with each bit on, and off."""
    number = torch.zeros(rows, dtype=torch.long, device="cpu")
    several, none = number.bool(), number.bool()
    for bit, (on, off) in enumerate(pairs):
        number += (on & ~off).long() << bit
        several |= on & off
        none |= ~on & ~off
    return torch.where(none, NONE, torch.where(several, SEVERAL, number))


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of arguments, in the order of `_mapped`."""
    tensors: list[Tensor] = []
    _mapped(value, lambda name, tensor, index: tensors.append(tensor))
    return tensors


def _mapped(value: Any, change: Callable[..., Any], name: str = "", index: int = 0) -> Any:
    """Apply `change` to each tensor of the arguments, its name and its index in a list."""
    if isinstance(value, Tensor):
        return change(name, value, index)
    if type(value) is dict:
        return {key: _mapped(part, change, str(key)) for key, part in value.items()}
    if type(value) not in (list, tuple):
        return value
    return type(value)([_mapped(part, change, name, i) for i, part in enumerate(value)])
