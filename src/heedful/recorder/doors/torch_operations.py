"""The third door: sees torch's own kernels, and attention written by hand, as operations of torch.

It makes an `Observed` of each kernel that is attention as a whole, and of each meeting of weights
and values that `following/` finds. A mode that sees every operation costs each some microseconds,
so it is only entered where some attention may be seen by no other door.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)

from heedful.ops.log_sum_exp import beside
from heedful.recorder.doors import multihead_attention, sdpa, softmax_matmul
from heedful.recorder.doors.begun import Begun
from heedful.recorder.doors.process_wide import ProcessWide
from heedful.recorder.following import without_mode, writes
from heedful.recorder.following.addresses import Addresses
from heedful.recorder.following.axis_rules import SDPA_KERNELS
from heedful.recorder.following.layers import Layers
from heedful.recorder.following.operations import Operations
from heedful.recorder.following.outside import Outside
from heedful.recorder.following.parameters import Parameters
from heedful.recorder.following.recurrent import followed
from heedful.recorder.following.scores import Meeting
from heedful.recorder.following.strides import Axes, are_whole
from heedful.recorder.following.writes import state_of
from heedful.recorder.observed import Observed, Real, Tell
from heedful.recorder.running import Given, Modules
from heedful.recorder.owners.told_or_followed import Owning

INSIDE = "a pass inside torch.func, whose tensors are of its own"
RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)  # and no classes of others that inherit from them


class Pass(NamedTuple):
    """What this door asks the recorder about the pass that runs, and tells it.

    given: gives what the pass was called with whose operations are to be followed, another object
        once a new pass has begun; None where none are. It is asked of each operation.
    name: gives the name of the module that runs.
    inputs: gives the tensors of the pass's inputs, and whether each only stands beside others.
    owning: gives what decides which axes of a call are batch, heads, queries and keys.
    begun: is told of what may be attention, and may be no call yet.
    missed: is called with what went wrong.
    idles: tells whether no module of the model is being called.
    method: gives the name of the module whose method runs then; None where it is none of its.
    missed_in: is called with such a name where attention was seen.
    tell_layers: is given what to tell of each simple layer that begins; None in the end.
    """

    given: Callable[[], Given | None]
    name: Callable[[], str]
    inputs: Callable[[], list[tuple[Tensor, bool]]]
    owning: Callable[[], Owning]
    begun: Begun
    missed: Callable[[str], None]
    idles: Callable[[], bool]
    method: Callable[[], str | None]
    missed_in: Callable[[str], None]
    tell_layers: Callable[[Layers | None], None]


@contextmanager
def watch(modules: Modules, see: Tell, told: Pass) -> Iterator[Callable[[Tensor], Axes]]:
    """Tell of each call of attention that torch's operations show.

    Args:
        modules: those of the model that runs; products with their parameters make features.
        see: is told of each call.
        told: what is known of the pass that runs.

    Yields:
        what tells the axes of a tensor of the pass, as far as they were followed.
    """
    door = _Door(modules, see, told)
    layers = Layers(door.operations)
    try:
        told.tell_layers(layers)
        recurrent = [one for one in modules if type(one) in RECURRENT]
        with (
            writes.counted(),
            _biases.entered(),
            _on_stack(door.operations),
            followed(recurrent, door.operations.traced, door.runs),
            layers.watched(modules),
        ):
            yield lambda tensor: door.operations.traced.view(tensor).axes()
    finally:
        told.tell_layers(None)
        door.forget()


@contextmanager
def _on_stack(mode: TorchDispatchMode) -> Iterator[None]:
    """Be under a mode, which is taken from wherever it stands in the stack in the end.

    torch takes the uppermost: of two recordings, the first of which ends first, that is the other.
    From the stack of another thread nothing can be taken.
    """
    mode.__enter__()
    try:
        yield
    finally:
        above = []
        while (upper := _get_current_dispatch_mode()) is not mode and upper is not None:
            above.append(_pop_mode())
        if upper is mode:
            mode.__exit__(None, None, None)
        for one in reversed(above):
            _push_mode(one)


@contextmanager
def _making_biases() -> Iterator[None]:
    """Let torch's `CausalBias` be made outside all modes: its constructor may run under none."""
    from torch.nn.attention.bias import CausalBias  # which brings torch's compiler: a second

    before = CausalBias.__dict__.get("__new__")

    def new(kind: type, *arguments: Any, **keywords: Any) -> Any:
        with _disable_current_modes():
            return Tensor.__new__(kind, *arguments, **keywords)

    CausalBias.__new__ = new  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        if before is None:
            del CausalBias.__new__
        else:
            CausalBias.__new__ = before  # type: ignore[method-assign]


_biases = ProcessWide(_making_biases)


class Nested:
    """The axes of tokens that stand in nested tensors, as encoders pack them without padding."""

    def __init__(self) -> None:
        self._axes: dict[int, tuple[Any, Axes | None]] = {}
        self._homes = Addresses()  # held, so that no other tensor gets the address of one

    def keep(self, tensor: Tensor, axes: Axes | None) -> None:
        """Note the axes of a nested tensor."""
        home = tensor.untyped_storage()
        self._homes.hold(home)
        self._axes[home._cdata] = state_of(tensor), axes

    def of(self, tensor: Tensor) -> Axes | None:
        """Its axes; None where they are not known, or it was written into."""
        state, axes = self._axes.get(tensor.untyped_storage()._cdata, (None, None))
        return axes if state == state_of(tensor) else None


class _Door:
    """Connects torch's operations with what the recorder wants to know of them."""

    def __init__(self, modules: Modules, see: Tell, told: Pass) -> None:
        self.see, self.told = see, told
        self._given: Given | None = None
        self._is_inside = False
        self._nested = Nested()
        self.operations = Operations(
            self.runs,
            {
                **{name: functools.partial(self._kernel, name) for name in SDPA_KERNELS},
                "flex_attention": lambda made, given: see(flexed, made, given),
                "_transformer_encoder_layer_fwd": functools.partial(self._of_tokens, layer),
                "_nested_tensor_from_mask": self._nest,
                "_native_multi_head_attention": functools.partial(self._of_tokens, native),
            },
            told.begun.listeners(self._met),
            told.missed,
            told.begun.kernel,
            Outside(told.idles, told.method, told.missed_in),
            Parameters(modules),
        )

    def runs(self) -> bool:
        """Whether operations are to be followed now; begins a new pass where the inputs are new."""
        given = self.told.given()
        if given is None:
            return False
        if given is not self._given:
            self._given, inputs = given, self.told.inputs()
            self._nested = Nested()
            # inside torch.func no shape shows how many texts there are
            levels = (torch._C._functorch.maybe_get_level(one) for one, _ in inputs)
            self._is_inside = any(level > 0 for level in levels)
            if self._is_inside:
                self.told.missed(INSIDE)
            self.operations.traced.begin([] if self._is_inside else inputs)
        return not self._is_inside

    def forget(self) -> None:
        """Forget all storages and inputs, so that nothing keeps them in memory.

        Nor does the circle of this and its operations, which would keep the recording until
        Python looks for circles.
        """
        self.operations.end()
        self._given = None
        del self.operations

    def _met(self, meeting: Meeting) -> None:
        name, role = self.told.name(), meeting.role
        whole = name, role.scores, role.altered, role.dropped
        this = (*whole, *_part_of(meeting))
        if whole in role.shown or this in role.shown:  # it met other values before: it is one call
            return
        role.met.append(name)

        def built(owning: Owning) -> Observed:
            seen = softmax_matmul.observed(meeting, owning)
            role.shown.add(this)  # not what is refused: with other values it may be a call
            return seen

        self.see(built, self.told.owning())

    def _nest(self, made: Any, given: dict[str, Any]) -> None:
        self._nested.keep(made, self.operations.traced.view(given["t"]).axes())

    def _of_tokens(self, build: Callable[..., Observed], made: Any, given: dict[str, Any]) -> None:
        tokens = given["src"] if "src" in given else given["query"]
        is_nested = tokens.is_nested
        axes = self._nested.of(tokens) if is_nested else self.operations.traced.view(tokens).axes()

        def built() -> Observed:
            seen = build(made, given)
            seen.of_tokens = None if axes is None else (axes[0], axes[1])
            return seen

        self.see(built)
        if is_nested:
            self._nested.keep(made[0] if isinstance(made, tuple) else made, axes)

    def _kernel(self, name: str, made: Any, given: dict[str, Any]) -> None:
        self.see(sdpa.kernel, name, made, given, self.operations.traced.view, self.told.owning())


def _part_of(meeting: Meeting) -> tuple:
    """What tells a part of a map that meets values, such as one head of it, from others of it.

    Nothing where that is all of the map, wherever it was copied to and however its axes stand.
    """
    role, table = meeting.role, meeting.weights
    parts = tuple(part for axis in meeting.weights_axes for part in axis)
    mine = {part.axis for axis in role.axes for part in axis}
    is_whole = are_whole(parts) and mine <= {part.axis for part in parts}
    if is_whole:
        return ()
    home = role.homes.hold(table.untyped_storage())  # else the next part may get its address
    return home, table.storage_offset(), tuple(table.shape), table.stride()


class FlexMask(NamedTuple):
    """The mask of flex attention as its kernel has it: a function of batch, head, query and key."""

    mask_mod: Callable


def flexed(made: tuple, given: dict[str, Any]) -> Observed:
    """The call of flex attention with a mask alone.

    Raises:
        TypeError: it has a score_mod, so its weights are no softmax of scaled and masked scores.
    """
    if given["score_mod"].__name__ != "_identity":
        raise TypeError("flex attention with a score_mod, whose weights are of another form")
    mask = FlexMask(given["block_mask"][-1])
    query, key, value = (given[name] for name in ("query", "key", "value"))
    return Observed(
        query,
        key,
        value,
        made[0],
        given["scale"],
        mask=mask,
        sums=beside("flex_attention", made),
        door="flex_attention",
    )


def native(made: tuple, given: dict[str, Any]) -> Observed:
    """The call of nn.MultiheadAttention's own kernel, whose output is projected already."""
    query = given["query"]
    seen = _projected(_padded(query), given, given["num_head"])
    if query.is_nested:
        seen = _without_padding(seen, query)
    seen.finish = lambda context, rows: _linear(context, given["proj_weight"], given["proj_bias"])
    seen.output = _padded(made[0])[:, None]
    return seen


def layer(made: Tensor, given: dict[str, Any]) -> Observed:
    """The call of nn.TransformerEncoderLayer's own kernel, which computes the whole layer."""
    source, eps, is_first = _padded(given["src"]), given["eps"], given["norm_first"]

    def norm(x: Tensor, number: int) -> Tensor:
        weight, bias = given[f"norm_weight_{number}"], given[f"norm_bias_{number}"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def finish(context: Tensor, rows: Tensor) -> Tensor:
        x = source[rows] + _linear(context, given["proj_weight"], given["proj_bias"])
        x = x if is_first else norm(x, 1)
        inner = _linear(norm(x, 2) if is_first else x, given["ffn_weight_1"], given["ffn_bias_1"])
        inner = F.gelu(inner) if given["use_gelu"] else F.relu(inner)
        x = x + _linear(inner, given["ffn_weight_2"], given["ffn_bias_2"])
        return x if is_first else norm(x, 2)

    seen = _projected(norm(source, 1) if is_first else source, given, given["num_heads"])
    if given["src"].is_nested:
        seen = _without_padding(seen, given["src"])
    seen.finish, seen.output, seen.part = finish, _padded(made)[:, None], "self_attn"
    return seen


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer as these kernels call it: cast where autocast is on."""
    with without_mode.autocasting():
        return F.linear(x, weight, bias)


def _without_padding(seen: Observed, source: Tensor) -> Observed:
    """The call with a mask of padding, for texts of unequal lengths in a nested tensor."""
    lengths = torch.tensor([len(one) for one in source.unbind()], device="cpu")
    keep = torch.arange(seen.shape[-1], device="cpu") < lengths[:, None]
    seen.mask, seen.real = keep[:, None, None].to(seen.query.device), Real(keep)
    return seen


def _padded(tensor: Tensor) -> Tensor:
    return tensor.to_padded_tensor(0.0) if tensor.is_nested else tensor


def _projected(x: Tensor, given: dict[str, Any], heads: int) -> Observed:
    """The call of tokens (B, N, D), with queries, keys and values as these kernels project them."""
    made = _linear(x, given["qkv_weight"], given["qkv_bias"]).unflatten(-1, (3, heads, -1))
    query, key, value = (one.transpose(1, 2) for one in made.unbind(2))
    mask = given.get("mask")
    if mask is not None:
        (B, _, N, _), hidden = query.shape, mask.bool()
        if given.get("mask_type") == 1:
            hidden = hidden.view(B, 1, 1, N)
        mask = ~hidden
    scale = query.shape[-1] ** -0.5
    seen = Observed(query, key, value, None, scale, mask=mask, door=multihead_attention.DOOR)
    if query.dtype.itemsize < 4:  # these kernels round scaled queries, and scores, as they come
        seen.rounded_to = (query.dtype,) * 2
    return seen
