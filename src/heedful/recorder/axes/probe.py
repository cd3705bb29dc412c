"""Probes a model: changes some inputs, and sees which rows of queries and keys change.

Texts are changed at the inputs of the model, places at those of each module that attends: all with
a bit in their number at once, then all without it. So 2 · log2(size) passes tell of each row which
text, or which place, it is made of.
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
from heedful.recorder.axes.pass_inputs import is_other, named, plain
from heedful.recorder.axes.probed_order import NONE, SEVERAL, Codes, UnsettledError, probed_order
from heedful.recorder.axes.usual_order import Order
from heedful.recorder.doors.tape_cells import Cells

# Parts of names of whole numbers that say how inputs are cut, and are not to be changed
CUTS = ("grid", "size", "length", "shape", "offset")
Given: TypeAlias = tuple[tuple, dict[str, Any]]  # arguments and keywords
Run: TypeAlias = tuple[str, int]  # a module, and which run of it
Sides: TypeAlias = tuple[Tensor, Tensor]  # one number for each row of queries, and of keys


class Call(NamedTuple):
    """A call of the pass that is probed, and the run of a module at whose inputs places change.

    is_told: whether its axes are told, so that only its texts are compared.
    """

    run: Run
    cells: Cells
    is_told: bool


class Probed(NamedTuple):
    """What probing tells of a call.

    texts: of each row of its queries the number of the text, or `SEVERAL` or `NONE`.
    order: of its axes; None where it is told, or not settled, and `why` says why.
    """

    texts: Tensor
    order: Order | None = None
    why: str = ""


class Probing:
    """Runs a model again and again with changed inputs.

    Args:
        model: the model.
        given: its arguments and keywords.
        calls_of: runs the model with arguments and keywords, and gives its calls.
        progress: called with the share that is done.

    Raises:
        ArgumentError: the model does something else when it runs again.
    """

    def __init__(
        self, model: nn.Module, given: Given, calls_of: Callable[[tuple, dict], list[Call]],
        progress: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.model, self.given, self.calls_of, self.progress = model, given, calls_of, progress
        self._modules = dict(model.named_modules())
        self._done, self._passes, self._share = 0, 16, 0.0  # as many passes as most models need
        self.calls: list[Call] = []
        self.calls = self._run(given)
        for differ in self._differing(self._run(given)):
            if any(bool(rows.any()) for rows in differ):
                raise _other_pass()

    def probed(self, texts: int, dim: int) -> list[Probed]:
        """What is told of each call, where texts are along a dimension of the inputs."""
        of_texts = self._texts(texts, dim)
        is_all_told = all(call.is_told for call in self.calls)
        of_places = [[] for _ in self.calls] if is_all_told else self._places()
        return [
            self._of_call(call, own, places, texts)
            for call, own, places in zip(self.calls, of_texts, of_places, strict=True)
        ]

    def _of_call(self, call: Call, own: Sides, places: list[Sides], texts: int) -> Probed:
        if call.is_told:
            return Probed(own[0])
        queries, keys = (
            Codes(text, torch.stack([sides[at] for sides in places]) if places else text[None][:0])
            for at, text in enumerate(own)
        )
        try:
            return Probed(own[0], probed_order(call.cells, queries, keys, texts))
        except UnsettledError as error:
            return Probed(own[0], why=str(error))

    def _texts(self, texts: int, dim: int) -> list[Sides]:
        """The text of each row of queries and keys of each call."""
        inputs = named(self.model, *self.given).values()
        is_list = any(isinstance(value, list | tuple) and len(value) == texts for value in inputs)

        def changed(bit: int, value: bool) -> list[Call]:
            def change(name: str, tensor: Tensor, place: int) -> Tensor:
                if is_list and tensor.ndim == 3:  # an image of a list
                    is_chosen = bool(place >> bit & 1) == value
                    return _other(name, tensor, torch.tensor(is_chosen, device="cpu"))
                axis = _axis_of(tensor, texts, dim)
                if axis is None:
                    return tensor
                return _other(name, tensor, _chosen(tensor.shape, axis, bit, value))

            return self._run(_mapped(self.given, change))

        return self._decoded(texts, changed)

    def _places(self) -> list[list[Sides]]:
        """For each call, the place of each row along each axis of its module's inputs."""
        inputs: dict[Run, Given] = {}

        def keep(run: Run, given: Given) -> None:
            inputs[run] = _mapped(given, lambda name, tensor, place: tensor.clone())

        self._run(self.given, keep)
        heads = {call.cells.query.shape[-1] for call in self.calls}
        axes = {
            run: [
                (number, axis, tensor.shape[axis])
                for number, tensor in enumerate(_tensors(given))
                for axis in _axes_of_places(tensor, heads)
            ]
            for run, given in inputs.items()
        }
        places: list[list[Sides]] = [[] for _ in self.calls]
        for turn in range(max(map(len, axes.values()), default=0)):
            chosen = {run: several[turn] for run, several in axes.items() if turn < len(several)}

            def changed(bit: int, value: bool, chosen: dict = chosen) -> list[Call]:
                return self._run(self.given, _changing(inputs, chosen, bit, value))

            codes = self._decoded(max(size for *_, size in chosen.values()), changed)
            for call, own, sides in zip(self.calls, places, codes, strict=True):
                if call.run in chosen:
                    own.append(sides)
        return places

    def _decoded(self, size: int, changed: Callable[[int, bool], list[Call]]) -> list[Sides]:
        """Of each row of queries and keys of each call the number that it changes with."""
        bits = (size - 1).bit_length()
        self._passes = max(self._passes, self._done + 2 * bits + 1)
        pairs = []  # for each bit, the rows that change with it, and those without, of each call
        for bit in range(bits):
            pairs.append([self._differing(changed(bit, value)) for value in (True, False)])
        return [
            (
                _numbers([(on[at][0], off[at][0]) for on, off in pairs], len(call.cells.query)),
                _numbers([(on[at][1], off[at][1]) for on, off in pairs], len(call.cells.key)),
            )
            for at, call in enumerate(self.calls)
        ]

    def _differing(self, calls: list[Call]) -> list[Sides]:
        """Which rows of queries and keys of each call are others than those of the first pass."""
        before, after = (
            [(call.run, call.cells.query.shape, call.cells.key.shape) for call in several]
            for several in (self.calls, calls)
        )
        if before != after:
            raise _other_pass()
        return [
            (_differ(own.cells.query, again.cells.query), _differ(own.cells.key, again.cells.key))
            for own, again in zip(self.calls, calls, strict=True)
        ]

    def _run(self, given: Given, hook: Callable[[Run, Given], Any] | None = None) -> list[Call]:
        """The calls of a pass; the hook is called before each module that attends."""
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
                calls = self.calls_of(*given)
            except (HeedfulError, OSError):  # such as a TimeoutError: it is not of the inputs
                raise
            except Exception as error:
                raise ArgumentError(
                    f"inputs with which the model ends in {type(error).__name__}: {error}",
                    expected="what it was called with",
                ) from error
        self._done += 1
        self._share = max(self._share, min(0.99, self._done / self._passes))
        self.progress(self._share)
        return calls


def _other_pass() -> ArgumentError:
    return ArgumentError(
        "a model that does something else when it runs again",
        expected="the same calls of attention in each pass",
        cause="it draws at random, or its calls depend on the numbers that it gets",
    )


def _changing(
    inputs: Mapping[Run, Given], chosen: Mapping[Run, tuple], bit: int, value: bool
) -> Callable[[Run, Given], Any]:
    """A hook that gives each module what it was given, with some places of one axis changed."""

    def change(run: Run, given: Given) -> Any:
        if run not in inputs:
            return None
        number, axis, _ = chosen.get(run, (-1, 0, 0))
        tensors = iter(enumerate(_tensors(inputs[run])))

        def put(name: str, tensor: Tensor, place: int) -> Tensor:
            at, before = next(tensors)
            if at != number:
                return before
            return _other(name, before, _chosen(before.shape, axis, bit, value))

        return _mapped(given, put)

    return change


def _axis_of(tensor: Tensor, texts: int, dim: int) -> int | None:
    """The axis of the texts of a tensor, or None; a table of ids may have them first where vectors
    have them second."""
    if tensor.ndim > dim and tensor.shape[dim] == texts and (tensor.ndim > 1 or dim == 0):
        return dim
    return 0 if dim and tensor.ndim == 2 and len(tensor) == texts else None


def _axes_of_places(tensor: Tensor, heads: set[int]) -> list[int]:
    """The axes of an input that may be of texts or places, and not of features or of heads; a
    cache has the width of heads last."""
    if tensor.ndim > 3 and tensor.shape[-1] in heads:
        return []
    is_vectors = tensor.is_floating_point() and tensor.ndim < 4
    return [axis for axis in range(tensor.ndim - is_vectors) if tensor.shape[axis] > 1]


def _chosen(shape: Sequence[int], axis: int, bit: int, value: bool) -> Tensor:
    """Where the number along an axis has a bit, or has it not; it broadcasts to the shape."""
    is_set = (torch.arange(shape[axis], device="cpu") >> bit & 1).bool() == value
    return is_set.view([-1 if place == axis else 1 for place in range(len(shape))])


def _other(name: str, tensor: Tensor, chosen: Tensor) -> Tensor:
    """The tensor with other numbers at some places: other ids of its own, or noise added."""
    chance = torch.Generator("cpu").manual_seed(1)
    chosen = chosen.to(tensor.device).expand(tensor.shape)
    if tensor.is_floating_point():
        noise = torch.empty(tensor.shape, dtype=torch.float32, device="cpu").uniform_(
            0.5, 1.5, generator=chance
        )
        return torch.where(chosen, tensor + noise.to(tensor), tensor)
    is_aside = is_other(name) or any(part in plain(name) for part in CUTS)
    if tensor.dtype == torch.bool or tensor.ndim < 2 or is_aside or not tensor.numel():
        return tensor
    values = tensor.unique()
    if len(values) < 2 or int(values[-1]) < 2:
        return tensor
    draw = torch.randint(1, len(values), tensor.shape, generator=chance, device="cpu")
    place = (torch.searchsorted(values, tensor) + draw.to(tensor.device)) % len(values)
    return torch.where(chosen, values[place], tensor)


def _differ(rows: Tensor, again: Tensor) -> Tensor:
    return ((rows != again) & ~(rows.isnan() & again.isnan())).any(-1).cpu()


def _numbers(pairs: list[Sides], rows: int) -> Tensor:
    """The number of each row, by the bits with which it changes, and those without."""
    number = torch.zeros(rows, dtype=torch.long, device="cpu")
    several, none = number.bool(), number.bool()
    for bit, (on, off) in enumerate(pairs):
        number += (on & ~off).long() << bit
        several |= on & off
        none |= ~on & ~off
    return torch.where(none, NONE, torch.where(several, SEVERAL, number))


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of arguments, in the order in which `_mapped` goes through them."""
    tensors: list[Tensor] = []
    _mapped(value, lambda name, tensor, place: tensors.append(tensor))
    return tensors


def _mapped(value: Any, change: Callable[..., Any], name: str = "", place: int = 0) -> Any:
    """Arguments with each tensor changed, by its name and its place in a list."""
    if isinstance(value, Tensor):
        return change(name, value, place)
    if type(value) is dict:
        return {key: _mapped(part, change, str(key)) for key, part in value.items()}
    if type(value) not in (list, tuple):
        return value
    return type(value)([_mapped(part, change, name, at) for at, part in enumerate(value)])
