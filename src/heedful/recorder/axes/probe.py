"""Finds the text and the positions on which each query and key depends, by changing inputs.

The model runs again with some inputs changed. A query or key that differs from that of the first
run depends on a changed input. Texts are found bit by bit: for each bit of the index of a text, one
pass changes all texts with this bit set, and another pass changes all others. A query that changes
in only one of the two passes reveals this bit of its text. A query that changes in both depends on
several texts; one that changes in neither, on none. So 2 · log2(number of texts) passes suffice.
Positions are found in the same way. Texts are changed at the inputs of the model, positions at the
inputs of each module that attends. From the results, `probed_order` determines the axes.
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
from heedful.recorder.axes.pass_inputs import arguments_by_name, is_not_ids, plain
from heedful.recorder.axes.probed_order import NONE, SEVERAL, Codes, UnsettledError, probed_order
from heedful.recorder.axes.usual_order import Order
from heedful.recorder.doors.tape_cells import Cells

# An integer input with one of these words in its name describes shapes and must not be changed
SHAPES = ("grid", "size", "length", "shape", "offset")
ModelInputs: TypeAlias = tuple[tuple, dict[str, Any]]  # arguments and keywords
Run: TypeAlias = tuple[str, int]  # a module's name, and the index of its call in the pass
InputHook: TypeAlias = Callable[[Run, ModelInputs], Any]  # returns the inputs to use instead
QueryKeyPair: TypeAlias = tuple[Tensor, Tensor]  # one entry per query, and one entry per key


class ProbedCall(NamedTuple):
    """A call of attention in a pass."""

    run: Run  # of the module that attends: positions are changed at its inputs
    cells: Cells
    has_given_layout: bool  # whether its door determines its axes: then only its texts are probed


class ProbeResult(NamedTuple):
    """The result of probing one call.

    texts: the index of the text on which each query depends, or `SEVERAL` or `NONE`.
    order: the order of the axes; None if the door determines it, or if probing does not.
    why: the reason why probing does not determine the order; else "".
    """

    texts: Tensor
    order: Order | None = None
    why: str = ""


class Probing:
    """Probes all calls of a model by running it repeatedly with changed inputs.

    `inputs` are those of the recorded pass. `run_model` runs the model with arguments and keywords,
    and returns its calls. `progress` is called with the completed fraction. Two passes with the
    same inputs must have the same calls, or else `ArgumentError` is raised.
    """

    def __init__(
        self, model: nn.Module, inputs: ModelInputs,
        run_model: Callable[[tuple, dict], list[ProbedCall]], progress: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.model, self.inputs, self.run_model, self.progress = model, inputs, run_model, progress
        self._modules = dict(model.named_modules())
        self._completed, self._expected, self._fraction = 0, 16, 0.0  # 16 is a first guess
        self.calls: list[ProbedCall] = []
        self.calls = self._run(inputs)
        for changes in self._changes(self._run(inputs)):
            if any(bool(rows.any()) for rows in changes):
                raise _not_repeatable()

    def probe(self, texts: int, dim: int) -> list[ProbeResult]:
        """Probe each call; the inputs have `texts` texts along their dimension `dim`."""
        row_texts = self._texts(texts, dim)
        has_positions = not all(call.has_given_layout for call in self.calls)
        positions = self._positions() if has_positions else [[] for _ in self.calls]
        results = zip(self.calls, row_texts, positions, strict=True)
        return [self._result(*result, texts) for result in results]

    @staticmethod
    def _result(
        call: ProbedCall, row_texts: QueryKeyPair, probes: list[QueryKeyPair], texts: int
    ) -> ProbeResult:
        if call.has_given_layout:
            return ProbeResult(row_texts[0])
        queries, keys = (
            Codes(text, torch.stack([rows[i] for rows in probes]) if probes else text[None][:0])
            for i, text in enumerate(row_texts)
        )
        try:
            return ProbeResult(row_texts[0], probed_order(call.cells, queries, keys, texts))
        except UnsettledError as error:
            return ProbeResult(row_texts[0], why=str(error))

    def _texts(self, texts: int, dim: int) -> list[QueryKeyPair]:
        """Return for each call the text on which each of its queries and keys depends."""
        inputs = arguments_by_name(self.model, *self.inputs).values()
        is_list = any(isinstance(value, list | tuple) and len(value) == texts for value in inputs)

        def run_changed(bit: int, value: bool) -> list[ProbedCall]:
            def change(name: str, tensor: Tensor, index: int) -> Tensor:
                if is_list and tensor.ndim == 3:  # one image of a list
                    is_selected = bool(index >> bit & 1) == value
                    return _perturbed(name, tensor, torch.tensor(is_selected, device="cpu"))
                axis = _axis_of_texts(tensor, texts, dim)
                if axis is None:
                    return tensor
                return _perturbed(name, tensor, _selection(tensor.shape, axis, bit, value))

            return self._run(_mapped(self.inputs, change))

        return self._decode(texts, run_changed)

    def _positions(self) -> list[list[QueryKeyPair]]:
        """Return for each call the position of each query and key along each axis of inputs."""
        inputs: dict[Run, ModelInputs] = {}

        def copy_inputs(run: Run, module_inputs: ModelInputs) -> None:
            inputs[run] = _mapped(module_inputs, lambda name, tensor, index: tensor.clone())

        self._run(self.inputs, copy_inputs)
        widths = {call.cells.query.shape[-1] for call in self.calls}
        axes = {run: [(index, axis, tensor.shape[axis])
                      for index, tensor in enumerate(_tensors(module_inputs))
                      for axis in _axes_of_positions(tensor, widths)]
                for run, module_inputs in inputs.items()}  # fmt: skip
        positions: list[list[QueryKeyPair]] = [[] for _ in self.calls]
        for turn in range(max(map(len, axes.values()), default=0)):
            selected = {run: several[turn] for run, several in axes.items() if turn < len(several)}

            def run_changed(bit: int, value: bool, selected: dict = selected) -> list[ProbedCall]:
                return self._run(self.inputs, _changing(inputs, selected, bit, value))

            decoded = self._decode(max(size for *_, size in selected.values()), run_changed)
            for call, call_positions, pair in zip(self.calls, positions, decoded, strict=True):
                if call.run in selected:
                    call_positions.append(pair)
        return positions

    def _decode(
        self, size: int, run_changed: Callable[[int, bool], list[ProbedCall]]
    ) -> list[QueryKeyPair]:
        """Return for each call the index below `size` on which each query and key depends.

        `run_changed(bit, value)` changes the inputs at all indices whose `bit` is `value`.
        """
        bits = (size - 1).bit_length()
        self._expected = max(self._expected, self._completed + 2 * bits + 1)
        passes = []  # for each bit, the changed rows of each call in its two passes
        for bit in range(bits):
            passes.append([self._changes(run_changed(bit, value)) for value in (True, False)])
        return [
            (_join_bits([(on[i][0], off[i][0]) for on, off in passes], len(call.cells.query)),
             _join_bits([(on[i][1], off[i][1]) for on, off in passes], len(call.cells.key)))
            for i, call in enumerate(self.calls)
        ]  # fmt: skip

    def _changes(self, calls: list[ProbedCall]) -> list[QueryKeyPair]:
        """Return which queries and keys of each call differ from the first pass."""
        if _shapes(calls) != _shapes(self.calls):
            raise _not_repeatable()
        return [
            (_differ(first.cells.query, call.cells.query), _differ(first.cells.key, call.cells.key))
            for first, call in zip(self.calls, calls, strict=True)
        ]

    def _run(self, inputs: ModelInputs, hook: InputHook | None = None) -> list[ProbedCall]:
        """Run a pass and return its calls; `hook` may replace the inputs of modules that attend."""
        counts: Counter[str] = Counter()

        def count_and_hook(name: str, module: nn.Module, arguments: tuple, keywords: dict) -> Any:
            counts[name] += 1
            return hook and hook((name, counts[name] - 1), (arguments, keywords))

        with ExitStack() as stack:
            names = {call.run[0] for call in self.calls if hook and not call.has_given_layout}
            for name in names:
                handle = self._modules[name].register_forward_pre_hook(
                    functools.partial(count_and_hook, name), with_kwargs=True
                )
                stack.callback(handle.remove)
            try:
                calls = self.run_model(*inputs)
            except (HeedfulError, OSError):  # such as a TimeoutError, which inputs do not cause
                raise
            except Exception as error:
                raise ArgumentError(
                    f"inputs with which the model ends in {type(error).__name__}: {error}",
                    expected="the inputs of the recorded pass",
                ) from error
        self._completed += 1
        self._fraction = max(self._fraction, min(0.99, self._completed / self._expected))
        self.progress(self._fraction)
        return calls


def _shapes(calls: list[ProbedCall]) -> list[tuple]:
    return [(call.run, call.cells.query.shape, call.cells.key.shape) for call in calls]


def _not_repeatable() -> ArgumentError:
    return ArgumentError(
        "a model whose attention calls differ between two passes",
        expected="the same calls, of the same shapes, in each pass",
        cause="it draws random numbers, or its calls depend on the values of its inputs",
    )


def _changing(
    inputs: Mapping[Run, ModelInputs], selected: Mapping[Run, tuple], bit: int, value: bool
) -> InputHook:
    """Return a hook that passes each module its first `inputs`. In the tensor and along the axis
    that are `selected` for the module's run, it changes the positions whose `bit` is `value`."""

    def change(run: Run, module_inputs: ModelInputs) -> Any:
        if run not in inputs:
            return None
        selected_index, axis, _ = selected.get(run, (-1, 0, 0))
        tensors = iter(enumerate(_tensors(inputs[run])))

        def restore(name: str, tensor: Tensor, index: int) -> Tensor:
            tensor_index, original = next(tensors)
            if tensor_index != selected_index:
                return original
            return _perturbed(name, original, _selection(original.shape, axis, bit, value))

        return _mapped(module_inputs, restore)

    return change


def _axis_of_texts(tensor: Tensor, texts: int, dim: int) -> int | None:
    """Return the axis of the texts, or None. For ids, it may be 0 even if `dim` is 1."""
    if tensor.ndim > dim and tensor.shape[dim] == texts and (tensor.ndim > 1 or dim == 0):
        return dim
    return 0 if dim and tensor.ndim == 2 and len(tensor) == texts else None


def _axes_of_positions(tensor: Tensor, widths: set[int]) -> list[int]:
    """Return the axes that may be positions; none for a cache, whose last axis is a head width."""
    if tensor.ndim > 3 and tensor.shape[-1] in widths:
        return []
    is_vectors = tensor.is_floating_point() and tensor.ndim < 4
    return [axis for axis in range(tensor.ndim - is_vectors) if tensor.shape[axis] > 1]


def _selection(shape: Sequence[int], axis: int, bit: int, value: bool) -> Tensor:
    """Return which indices along an axis have `bit` equal to `value`; broadcasts to `shape`."""
    is_set = (torch.arange(shape[axis], device="cpu") >> bit & 1).bool() == value
    return is_set.view([-1 if dim == axis else 1 for dim in range(len(shape))])


def _perturbed(name: str, tensor: Tensor, selection: Tensor) -> Tensor:
    """Change the selected entries: add noise, or replace each id by another id of the tensor."""
    generator = torch.Generator("cpu").manual_seed(1)
    selection = selection.to(tensor.device).expand(tensor.shape)
    if tensor.is_floating_point():
        noise = torch.empty(tensor.shape, dtype=torch.float32, device="cpu").uniform_(
            0.5, 1.5, generator=generator
        )
        return torch.where(selection, tensor + noise.to(tensor), tensor)
    is_fixed = is_not_ids(name) or any(part in plain(name) for part in SHAPES)
    if tensor.dtype == torch.bool or tensor.ndim < 2 or is_fixed or not tensor.numel():
        return tensor
    values = tensor.unique()
    if len(values) < 2 or int(values[-1]) < 2:
        return tensor
    shift = torch.randint(1, len(values), tensor.shape, generator=generator, device="cpu")
    index = (torch.searchsorted(values, tensor) + shift.to(tensor.device)) % len(values)
    return torch.where(selection, values[index], tensor)


def _differ(rows: Tensor, new_rows: Tensor) -> Tensor:
    return ((rows != new_rows) & ~(rows.isnan() & new_rows.isnan())).any(-1).cpu()


def _join_bits(changes: list[tuple[Tensor, Tensor]], rows: int) -> Tensor:
    """Return the index on which each row depends, or `SEVERAL` or `NONE`. `changes`: for
    each bit, which rows change with the inputs that have it set, and which with the others."""
    index = torch.zeros(rows, dtype=torch.long, device="cpu")
    several, none = index.bool(), index.bool()
    for bit, (on, off) in enumerate(changes):
        index += (on & ~off).long() << bit
        several |= on & off
        none |= ~on & ~off
    return torch.where(none, NONE, torch.where(several, SEVERAL, index))


def _tensors(value: Any) -> list[Tensor]:
    """Return all tensors among arguments, in the order of `_mapped`."""
    tensors: list[Tensor] = []
    _mapped(value, lambda name, tensor, index: tensors.append(tensor))
    return tensors


def _mapped(value: Any, change: Callable[..., Any], name: str = "", index: int = 0) -> Any:
    """Replace each tensor among arguments by `change(name, tensor, index in its list)`."""
    if isinstance(value, Tensor):
        return change(name, value, index)
    if type(value) is dict:
        return {key: _mapped(part, change, str(key)) for key, part in value.items()}
    if type(value) not in (list, tuple):
        return value
    return type(value)([_mapped(part, change, name, i) for i, part in enumerate(value)])
