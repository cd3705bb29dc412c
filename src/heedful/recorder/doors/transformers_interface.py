"""The door to `AttentionInterface`, through which models of transformers call attention.

The door wraps the implementation that a model uses, such as eager or sdpa. It does not register a
new name: without a mask function of that name, transformers silently drops padding and causality.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.ops import dispatch
from heedful.ops.log_sum_exp import LogSumExpMode
from heedful.ops.masks import Causal
from heedful.recorder.doors import flash_masks
from heedful.recorder.doors.process_wide import ProcessWide
from heedful.recorder.doors.sdpa import DROPPED
from heedful.recorder.observed_call import AXES, Observed, Report
from heedful.recording.module_names import Modules

# Returns a context that hides a call from other doors; it yields whether to record the call
Claim: TypeAlias = Callable[[], AbstractContextManager[bool]]

TOP_LEFT = Causal(0)
# Names that occur in the code of classes that compute attention without the interface
BY_HAND = {"softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}


def is_loaded() -> bool:
    """Whether the process has imported models of transformers."""
    return "transformers.modeling_utils" in sys.modules


@contextmanager
def watch(report: Report, claim: Claim) -> Iterator[None]:
    """Report each call through the interface for which `claim()` yields True."""
    if _interface() is None:  # an old version, whose models `check` has refused
        yield
        return
    listener = report, claim
    with patched.entered():
        _listeners.append(listener)
        try:
            yield
        finally:
            _listeners.remove(listener)


_listeners: list[tuple[Report, Claim]] = []  # of all threads; claims of other threads yield False


@contextmanager
def _patch() -> Iterator[None]:
    interface = _interface()
    original = interface.get_interface

    def get_interface(self: Any, implementation: str, default: Callable) -> Callable:
        function = original(self, implementation, default)

        def call(module: nn.Module, *tensors: Any, **keywords: Any) -> Any:
            lse, weights = None, [None]
            build = functools.partial(from_arguments, implementation, module, tensors, keywords)

            def run() -> Tensor:
                with dispatch.hidden():
                    output, weights[0] = function(module, *tensors, **keywords)
                return output.transpose(1, 2)

            with ExitStack() as stack:
                reports = [r for r, claim in tuple(_listeners) if stack.enter_context(claim())]
                # eager attention has no sums; for a single query, sums save no time
                has_rows = not (tensors and tensors[0].shape[2] == 1)
                if reports and implementation != "eager" and has_rows:
                    lse = stack.enter_context(LogSumExpMode())
                output, note = dispatch.changed(build, run)
            with dispatch.noted(note):
                for report in reports:
                    report(build, output, lse)
            return output.transpose(1, 2).contiguous(), weights[0]

        return call

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original


patched = ProcessWide(_patch)  # entered while calls are reported or changed


@functools.cache
def uses_interface(kind: type) -> bool:
    """Whether a class of transformers attends only through the interface. It computes attention by
    hand if its code contains a name of `BY_HAND`, and not the interface."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("transformers.models.")]
    functions = filter(inspect.isfunction, (part for base in bases for part in vars(base).values()))
    names = {name for function in functions for name in function.__code__.co_names}
    return "ALL_ATTENTION_FUNCTIONS" in names or not names & BY_HAND


def check(modules: Modules) -> None:
    """Raise `HeedfulError` for a model of a transformers version without the interface."""
    is_old = is_loaded() and _interface() is None
    if is_old and any(type(part).__module__.startswith("transformers") for part in modules):
        raise HeedfulError(
            f"transformers {sys.modules['transformers'].__version__}",
            expected="version 5 or newer, whose attention can be recorded",
            remedy="pip install --upgrade transformers",
        )


def _interface() -> Any:
    """Return transformers' `AttentionInterface`; None in older versions."""
    modeling = sys.modules["transformers.modeling_utils"]
    interface = getattr(modeling, "AttentionInterface", None)
    return interface if hasattr(interface, "get_interface") else None


def from_arguments(
    implementation: str, module: nn.Module, tensors: tuple, keywords: dict,
    output: Tensor | None = None, lse: LogSumExpMode | None = None,
) -> Observed:  # fmt: skip
    """Return the call of an implementation of the interface; `output` is (B, H, N, v)."""
    names = ("query", "key", "value", "attention_mask", "dropout", "scaling")
    inputs = dict(zip(names, tensors, strict=False)) | keywords
    query, key, value = (_as_multiplied(inputs[name], implementation) for name in names[:3])
    scale = inputs.get("scaling")
    mask, causal = inputs.get("attention_mask"), _is_causal(module, inputs)
    sinks = inputs.get("s_aux", inputs.get("sinks"))  # one per head or, with 4 axes, per query
    sinks = sinks[..., 0] if sinks is not None and sinks.ndim == 4 else sinks
    cross, real = getattr(module, "is_cross_attention", None) or None, None
    if flash_masks.is_flash(implementation):
        mask, real = flash_masks.mask_of(inputs, causal), flash_masks.real_of(inputs, cross)
    elif implementation == "eager" and mask is not None and mask.dtype == torch.bool:
        mask = mask.to(query.dtype)  # eager attention adds a boolean mask to the scores as 1 and 0
    elif mask is None and causal and implementation != "eager" and query.shape[2] > 1:
        mask = TOP_LEFT  # torch's is_causal; eager attention applies no causal mask of its own
    if sinks is not None:  # transformers applies sinks after the kernel, whose sums lack them
        lse = None
    return Observed(
        query, key, value, output,
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask, bias=inputs.get("position_bias"), softcap=inputs.get("softcap"), sinks=sinks,
        sums=lse.result(query.shape[:3]) if lse else None, axes=AXES, cross=cross,
        causal=causal, real=real, door=f"transformers, {implementation}",
        why=DROPPED if inputs.get("dropout") else "",
    )  # fmt: skip


def _as_multiplied(side: Tensor, implementation: str) -> Tensor:
    """Cast a query, key or value to the type in which it is multiplied: under autocast, rotary
    positions return float32, and the product casts them to 16 bits."""
    device = side.device.type
    is_cast = implementation in ("eager", "sdpa") and torch.is_autocast_enabled(device)
    if not is_cast or side.dtype == torch.float64:
        return side
    return side.to(torch.get_autocast_dtype(device))


def _is_causal(module: nn.Module, inputs: dict) -> bool:
    argument = inputs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if argument is None else argument)
