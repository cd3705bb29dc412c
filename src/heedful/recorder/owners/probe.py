"""Verifies what the axes of calls are of by probing: change some inputs, see which rows change.

Texts are changed at the inputs of the model, places at those of each module that attends. All with
a certain bit in their number are changed at once, then all without it: so 2 · log2(size) passes tell
of each row of queries and keys which text, or which place, it is made of.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError
from heedful.recorder.doors.cells import Cells
from heedful.recorder.owners.inputs import is_other, named, plain
from heedful.recorder.owners.probed_order import NONE, SEVERAL, Codes, UnsettledError, probed_order
from heedful.recorder.owners.usual_order import Order

# Parts of names of whole numbers that say how inputs are cut, and are not to be changed
CUTS = ("grid", "size", "length", "shape", "offset")
Change = Callable[[str, Tensor], Tensor]


class Call(NamedTuple):
    """A call of the pass that is probed: its axes, which have to be named or only compared.

    name, run: the module at whose inputs places are changed, and which run of it this is of.
    is_told: whether its axes are told, so that only its texts are compared.
    """

    name: str
    run: int
    cells: Cells
    is_told: bool


class Probed(NamedTuple):
    """What probing tells of a call.

    order: of its axes; None where it is not settled, or told.
    texts: of each row of its queries the number of the text, or `SEVERAL` or `NONE`.
    why: why it is not settled.
    """

    order: Order | None
    texts: Tensor
    why: str = ""


class Probing:
    """Runs a model again and again with changed inputs.

    Args:
        model: the model.
        given: its arguments and keywords.
        calls_of: runs the model once with arguments and keywords, and gives its calls.
        progress: is told of the share that is done.
    """

    def __init__(
        self,
        model: nn.Module,
        given: tuple[tuple, dict[str, Any]],
        calls_of: Callable[[tuple, dict[str, Any]], list[Call]],
        progress: Callable[[float], None],
    ) -> None:
        self.model, self.given, self.calls_of, self.progress = model, given, calls_of, progress
        self._modules = dict(model.named_modules())
        self._done, self._passes = 0, 2
        self._base: list[Call] = []
        self._base = self._run(given)
        self._check(self._run(given))

    @property
    def calls(self) -> list[Call]:
        """The calls of the unchanged inputs."""
        return self._base

    def probed(self, texts: int, dim: int) -> list[Probed]:
        """What is told of each call, where texts are along a dimension of the inputs."""
        of_texts = self._texts(texts, dim)
        is_open = [not call.is_told for call in self._base]
        of_places = self._places() if any(is_open) else [[] for _ in self._base]
        return [
            self._one(call, *of_texts[at], of_places[at], texts)
            for at, call in enumerate(self._base)
        ]

    def _one(
        self, call: Call, of_queries: Tensor, of_keys: Tensor, places: list, texts: int
    ) -> Probed:
        if call.is_told:
            return Probed(None, of_queries)
        sides = []
        for side, own in enumerate((of_queries, of_keys)):
            codes = [pair[side] for pair in places]
            sides.append(Codes(own, torch.stack(codes) if codes else own.new_empty(0, len(own))))
        try:
            return Probed(probed_order(call.cells, *sides, texts), of_queries)
        except UnsettledError as error:
            return Probed(None, of_queries, str(error))

    def _texts(self, texts: int, dim: int) -> list[tuple[Tensor, Tensor]]:
        """The text of each row of queries and keys of each call."""
        if texts < 2:
            return [(torch.zeros(len(call.cells.query), dtype=torch.long, device="cpu"),
                     torch.zeros(len(call.cells.key), dtype=torch.long, device="cpu"))
                    for call in self._base]  # fmt: skip
        arguments, keywords = self.given
        inputs = named(self.model, arguments, keywords)
        is_list = any(
            isinstance(one, list | tuple) and len(one) == texts for one in inputs.values()
        )

        def changed(bit: int, value: bool) -> list[Call]:
            def change(name: str, tensor: Tensor) -> Tensor:
                axis = _axis_of(tensor, texts, dim)
                if axis is None:
                    return tensor
                return _other(name, tensor, _chosen(tensor.shape, axis, bit, value))

            def item(number: int, name: str, tensor: Tensor) -> Tensor:
                chosen = torch.tensor(bool(number >> bit & 1) == value)
                return _other(name, tensor, chosen.to(tensor.device))

            return self._run(_mapped(self.given, change, item if is_list else None, texts))

        return self._decoded(_bits(texts), changed)

    def _places(self) -> list[list[tuple[Tensor, Tensor]]]:
        """For each call, the place of each row along each axis of its module's inputs."""
        inputs = self._inputs_of_modules()
        axes: dict[tuple[str, int], list[tuple[int, int]]] = {}
        heads = {call.cells.query.shape[-1] for call in self._base}
        for key, given in inputs.items():
            axes[key] = [
                (number, axis)
                for number, tensor in enumerate(_tensors(given))
                for axis in _axes_of_places(tensor, heads)
            ]
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self._base]
        for turn in range(max(map(len, axes.values()), default=0)):
            chosen = {key: several[turn] for key, several in axes.items() if turn < len(several)}
            sizes = [_tensor_at(inputs[key], number).shape[axis]
                     for key, (number, axis) in chosen.items()]  # fmt: skip

            def changed(bit: int, value: bool, chosen: dict = chosen) -> list[Call]:
                return self._run(self.given, self._changing(inputs, chosen, bit, value))

            codes = self._decoded(_bits(max(sizes)), changed)
            for at, call in enumerate(self._base):
                if (call.name, call.run) in chosen:
                    found[at].append(codes[at])
        return found

    def _inputs_of_modules(self) -> dict[tuple[str, int], tuple]:
        """What each module that attends was given in each of its calls."""
        inputs: dict[tuple[str, int], tuple] = {}

        def keep(key: tuple[str, int], arguments: tuple, keywords: dict) -> None:
            inputs[key] = _mapped((arguments, keywords), lambda name, tensor: tensor.clone())

        self._run(self.given, keep)
        return inputs

    def _changing(
        self, inputs: Mapping[tuple[str, int], tuple], chosen: Mapping, bit: int, value: bool
    ) -> Callable[..., Any]:
        """A hook that gives each module what it was given, with some places of one axis changed."""

        def change(key: tuple[str, int], arguments: tuple, keywords: dict) -> Any:
            if key not in inputs:
                return None
            number, axis = chosen.get(key, (-1, 0))
            tensors = iter(enumerate(_tensors(inputs[key])))

            def put(name: str, tensor: Tensor) -> Tensor:  # a cache is that of this pass
                at, before = next(tensors)
                if at != number:
                    return before
                return _other(name, before, _chosen(before.shape, axis, bit, value))

            return _mapped((arguments, keywords), put)

        return change

    def _decoded(
        self, bits: int, changed: Callable[[int, bool], list[Call]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Of each row of queries and keys of each call the number that it changes with."""
        self._passes += 2 * bits
        pairs: list[list[list[tuple[Tensor, Tensor]]]] = [[[], []] for _ in self._base]
        for bit in range(bits):
            differing = [self._differing(changed(bit, value)) for value in (True, False)]
            for at, (on, off) in enumerate(zip(*differing, strict=True)):
                for side in (0, 1):
                    pairs[at][side].append((on[side], off[side]))
        return [(_numbers(queries), _numbers(keys)) for queries, keys in pairs]

    def _differing(self, calls: list[Call]) -> list[tuple[Tensor, Tensor]]:
        """Which rows of queries and keys of each call are others than those of the first pass."""
        self._check(calls, same_numbers=False)
        return [
            tuple(
                ((own != other) & ~(own.isnan() & other.isnan())).any(-1).cpu()
                for own, other in ((one.cells.query, again.cells.query),
                                   (one.cells.key, again.cells.key))
            )
            for one, again in zip(self._base, calls, strict=True)
        ]  # type: ignore[misc]  # fmt: skip

    def _check(self, calls: list[Call], same_numbers: bool = True) -> None:
        """Refuse a pass that does something else than the first one.

        Raises:
            ArgumentError: with the module that does.
        """
        own, other = ([(c.name, c.cells.query.shape, c.cells.key.shape) for c in several]
                      for several in (self._base, calls))  # fmt: skip
        is_same = own == other
        if is_same and same_numbers:
            is_same = not any(bool(one.any()) for pair in self._differing(calls) for one in pair)
        if not is_same:
            raise ArgumentError(
                "a model that does something else when it runs again",
                expected="the same calls of attention in each pass",
                cause="one that draws at random, or whose calls depend on the numbers that it gets",
            )

    def _run(
        self, given: tuple[tuple, dict[str, Any]], hook: Callable[..., Any] | None = None
    ) -> list[Call]:
        """The calls of a pass; the hook is called before each module that attends."""
        with ExitStack() as stack:
            numbers: dict[str, int] = defaultdict(int)

            def before(name: str) -> Callable[..., Any]:
                def enter(module: nn.Module, arguments: tuple, keywords: dict) -> Any:
                    key = name, numbers[name]
                    numbers[name] += 1
                    return hook(key, arguments, keywords) if hook is not None else None

                return enter

            names = {call.name for call in self._base if not call.is_told}
            for name in names if hook is not None else ():
                module = self._modules[name]
                handle = module.register_forward_pre_hook(before(name), with_kwargs=True)
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
        self.progress(min(1.0, self._done / self._passes))
        return calls


def called(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    """Arguments and keywords of inputs: a mapping, a list of arguments, or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, list | tuple):
        return tuple(inputs), {}
    return (inputs,), {}


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode, and put everything back: modes, buffers and random states.

    Where one thing cannot be put back, all others are.
    """
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
            for name, buffer in module._buffers.items():
                before = None if buffer is None else buffer.detach().clone()
                stack.callback(_put_back, module, name, buffer, before)
            for held in vars(module).values():
                if isinstance(held, torch.Generator):
                    stack.callback(held.set_state, held.get_state())
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        model.eval()
        yield


@torch.no_grad()
def _put_back(module: nn.Module, name: str, buffer: Tensor | None, before: Tensor | None) -> None:
    module._buffers[name] = buffer  # a pass may have put another one in its place
    if buffer is None or before is None:
        return
    try:
        is_same = torch.equal(buffer, before)
    except NotImplementedError:  # of a sparse or nested one, say
        is_same = False
    if not is_same:
        buffer.copy_(before)


def _axis_of(tensor: Tensor, texts: int, dim: int) -> int | None:
    """The axis along which a tensor has the texts; None where it has none.

    Where texts are second in vectors of tokens, a table of ids may have them first.
    """
    if tensor.ndim > dim and tensor.shape[dim] == texts and (tensor.ndim > 1 or dim == 0):
        return dim
    return 0 if dim and tensor.ndim == 2 and len(tensor) == texts else None


def _axes_of_places(tensor: Tensor, heads: set[int]) -> list[int]:
    """The axes of an input that may be of texts or places, and not of features or of heads.

    Images have features first, (texts, channels, h, w). A cache has heads, and their width last.
    """
    if tensor.ndim > 3 and tensor.shape[-1] in heads:
        return []
    is_vectors = tensor.is_floating_point() and tensor.ndim < 4
    return [axis for axis in range(tensor.ndim - is_vectors) if tensor.shape[axis] > 1]


def _bits(size: int) -> int:
    return (size - 1).bit_length()


def _chosen(shape: Sequence[int], axis: int, bit: int, value: bool) -> Tensor:
    """Where the number along an axis has a bit, or has it not; it broadcasts to the shape."""
    is_set = (torch.arange(shape[axis], device="cpu") >> bit & 1).bool() == value
    return is_set.view([-1 if place == axis else 1 for place in range(len(shape))])


def _other(name: str, tensor: Tensor, chosen: Tensor) -> Tensor:
    """The tensor with other numbers at some places: other ids of its own, or noise added."""
    chance = torch.Generator("cpu").manual_seed(1)
    chosen = chosen.to(tensor.device).expand(tensor.shape)
    if tensor.is_floating_point():
        noise = torch.empty(tensor.shape, device="cpu").uniform_(0.5, 1.5, generator=chance)
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


def _numbers(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The number of each row, by the bits with which it changes, and those without."""
    number = torch.zeros(len(pairs[0][0]), dtype=torch.long, device="cpu")
    several, none = torch.zeros_like(number).bool(), torch.zeros_like(number).bool()
    for bit, (on, off) in enumerate(pairs):
        number += (on & ~off).long() << bit
        several |= on & off
        none |= ~on & ~off
    return torch.where(none, NONE, torch.where(several, SEVERAL, number))


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments, in the order in which `_mapped` goes through them."""
    found: list[Tensor] = []
    _mapped(value, lambda name, tensor: found.append(tensor) or tensor)
    return iter(found)


def _tensor_at(value: Any, number: int) -> Tensor:
    return [*_tensors(value)][number]


def _mapped(
    value: Any,
    change: Change,
    item: Callable[[int, str, Tensor], Tensor] | None = None,
    items: int = 0,
    name: str = "",
) -> Any:
    """Arguments with each tensor changed; those in a list of `items` by `item`, with its number."""
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: _mapped(one, change, item, items, str(key)) for key, one in value.items()}
    if type(value) in (list, tuple):
        if item is not None and name and len(value) == items:
            return type(value)(
                _mapped(one, lambda of, tensor, at=at: item(at, of, tensor), None, 0, name)
                for at, one in enumerate(value)
            )
        return type(value)(_mapped(one, change, item, items, name) for one in value)
    return value
