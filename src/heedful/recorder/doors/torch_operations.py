"""The door to torch's operations: fused attention kernels, and attention by hand.

Attention by hand is written out as products and a softmax. To watch an operation costs some
microseconds, so this door is used only if the other doors may miss a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from heedful.recorder.doors import encoder_layers, sdpa, tape_inputs, transformers_interface
from heedful.recorder.doors.tape import Tape, TapedCall
from heedful.recorder.module_stack import Hook
from heedful.recorder.observed_call import Observed, Report

# The other doors cover the modules of these packages, but not these LAYERS of torch
PACKAGES = ("torch", "heedful", "transformers")
LAYERS = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def is_covered(module: nn.Module) -> bool:
    """Whether other doors report all attention of a module, and it has no foreign hooks."""
    kind: Any = type(module)
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    defined_in = getattr(getattr(kind, "forward", None), "__module__", None) or ""
    is_changed = "forward" in module.__dict__ or defined_in.partition(".")[0] not in PACKAGES
    if is_changed or not all(isinstance(hook, Hook) for hook in hooks):
        return False
    package = kind.__module__.partition(".")[0]
    if package == "torch":
        return not isinstance(module, nn.MultiheadAttention | nn.Transformer | LAYERS)
    is_transformers = package == "transformers"
    return package == "heedful" or (is_transformers and transformers_interface.uses_interface(kind))


@contextmanager
def watch(
    parameters: Iterable[Tensor], report: Report, is_followed: Callable[[], bool],
    name: Callable[[], str], miss: Callable[[str, str], None],
) -> Iterator[Tape]:  # fmt: skip
    """Report each fused kernel and each call by hand. `Tape` documents all other arguments."""
    fused = {name: functools.partial(report, sdpa.from_kernel, name) for name in sdpa.KERNELS}
    fused |= {
        "flex_attention": functools.partial(report, sdpa.from_flex_attention),
        "_transformer_encoder_layer_fwd": functools.partial(report, encoder_layers.from_layer),
        "_native_multi_head_attention": functools.partial(report, encoder_layers.from_attention),
    }
    tape = Tape(parameters, is_followed, name, functools.partial(report, _from_tape), miss, fused)
    try:
        with tape:
            yield tape
    finally:
        tape.end()


def _from_tape(taped: TapedCall) -> Observed:
    why = "" if taped.output is not None else "its product with values also adds a tensor"
    why = sdpa.DROPPED if taped.weights.step.is_dropped else why
    return Observed(
        taped.first, taped.second, taped.value, taped.output, door=tape_inputs.DOOR, why=why,
        taped=taped._replace(value=None, output=None),
    )  # fmt: skip
