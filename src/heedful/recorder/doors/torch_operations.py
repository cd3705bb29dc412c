"""The door to torch's operations: its kernels for attention, and attention written by hand.

A mode that sees every operation costs each some microseconds, so it is only entered where some
attention may be seen by no other door.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)

from heedful.recorder.doors import by_hand, encoder_layers, sdpa, transformers_interface
from heedful.recorder.doors.process_wide import ProcessWide
from heedful.recorder.doors.tape import Meeting, Tape
from heedful.recorder.hooks import Hook
from heedful.recorder.observed import Observed, See

# Packages whose modules tell, and torch's layers that attend by themselves
WRITERS = ("torch", "heedful", "transformers")
LAYERS = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def tells(module: nn.Module) -> bool:
    """Whether all attention of a module is told by it, and none is by hand.

    So it is of modules of ours, of those of transformers that use its interface for attention, and
    of torch's layers, unless somebody has put a hook or another `forward` on it.
    """
    kind = type(module)
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    written_by = getattr(getattr(kind, "forward", None), "__module__", None) or ""
    is_changed = "forward" in module.__dict__ or written_by.partition(".")[0] not in WRITERS
    if is_changed or not all(isinstance(hook, Hook) for hook in hooks):
        return False
    package = kind.__module__.partition(".")[0]
    if package == "torch":
        return not isinstance(module, nn.MultiheadAttention | nn.Transformer | LAYERS)
    return package == "heedful" or (
        package == "transformers" and transformers_interface.uses_it(kind)  # type: ignore[arg-type]
    )


@contextmanager
def watch(
    parameters: Iterable[Tensor],
    see: See,
    is_here: Callable[[], bool],
    name: Callable[[], str],
    miss: Callable[[str, str], None],
) -> Iterator[Tape]:
    """Tell of each call of attention that torch's operations show.

    Args:
        parameters: of the model that runs, with its buffers.
        see: is told of each call.
        is_here, name, miss: as `Tape` has them.
    """
    fused = {kernel: functools.partial(_kernel, see, kernel) for kernel in sdpa.KERNELS}
    fused |= {
        "flex_attention": functools.partial(see, sdpa.flexed),
        "_transformer_encoder_layer_fwd": functools.partial(see, encoder_layers.layer),
        "_native_multi_head_attention": functools.partial(see, encoder_layers.native),
    }
    tape = Tape(parameters, is_here, name, functools.partial(see, _by_hand), miss, fused)
    try:
        with _biases.entered(), _on_stack(tape):
            yield tape
    finally:
        tape.end()


def _kernel(see: See, name: str, made: Any, given: dict[str, Any]) -> None:
    see(sdpa.observed, name, made, given)


def _by_hand(meeting: Meeting) -> Observed:
    why = "" if meeting.output is not None else "its product with values adds something else"
    return Observed(
        meeting.query,
        meeting.key,
        meeting.value,
        meeting.output,
        door=by_hand.DOOR,
        why=sdpa.DROPPED if meeting.weights.step.is_dropped else why,
        meeting=meeting._replace(value=None, output=None),
    )


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
