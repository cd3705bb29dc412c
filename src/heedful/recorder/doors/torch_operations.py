"""The door to torch's operations: its kernels for attention, and attention written by hand.

A mode that sees every operation costs each some microseconds, so it is only entered where some
attention may be seen by no other door.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from heedful.recorder.doors import encoder_layers, sdpa, tape_inputs, transformers_interface
from heedful.recorder.doors.tape import Meeting, Tape
from heedful.recorder.module_stack import Hook
from heedful.recorder.observed_call import Observed, See

# Packages whose modules tell, and torch's layers that attend by themselves
WRITERS = ("torch", "heedful", "transformers")
LAYERS = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def tells(module: nn.Module) -> bool:
    """Whether another door sees all attention of a module, unless it has hooks of somebody else."""
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
    parameters: Iterable[Tensor], see: See, is_here: Callable[[], bool], name: Callable[[], str],
    miss: Callable[[str, str], None],
) -> Iterator[Tape]:  # fmt: skip
    """Tell `see` of each call that torch's operations show; the rest is as `Tape` has it."""
    fused = {kernel: functools.partial(see, sdpa.observed, kernel) for kernel in sdpa.KERNELS}
    fused |= {
        "flex_attention": functools.partial(see, sdpa.flexed),
        "_transformer_encoder_layer_fwd": functools.partial(see, encoder_layers.layer),
        "_native_multi_head_attention": functools.partial(see, encoder_layers.native),
    }
    tape = Tape(parameters, is_here, name, functools.partial(see, _by_hand), miss, fused)
    try:
        with tape:
            yield tape
    finally:
        tape.end()


def _by_hand(meeting: Meeting) -> Observed:
    why = "" if meeting.output is not None else "its product with values adds something else"
    return Observed(
        meeting.query,
        meeting.key,
        meeting.value,
        meeting.output,
        door=tape_inputs.DOOR,
        why=sdpa.DROPPED if meeting.weights.step.is_dropped else why,
        meeting=meeting._replace(value=None, output=None),
    )
