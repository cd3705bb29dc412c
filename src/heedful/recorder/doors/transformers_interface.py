"""The second door: sees calls through the interface by which transformers' models call attention.

Whatever implementation a model uses (eager, sdpa, flex) is called as before; its query, key, mask
and keywords are seen on the way. To register an implementation of our own would be worse: without
a mask function of its name, padding and causality would vanish in silence.
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
from heedful.ops.log_sum_exp import Catching
from heedful.ops.masks import Causal
from heedful.recorder.doors import flash_attention
from heedful.recorder.doors.sdpa import DROPPED
from heedful.recorder.doors.shared_context import ProcessWide
from heedful.recorder.observed_call import AXES, Observed, See
from heedful.recording.module_names import Modules

# Gives a context for one call, in which no other door looks; it says whether the call is wanted
Claim: TypeAlias = Callable[[], AbstractContextManager[bool]]

TOP_LEFT = Causal(0)
# Names in the code of a class that computes attention without the interface
BY_HAND = {"softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}


def is_loaded() -> bool:
    """Whether the process has imported models of transformers; if not, nothing is patched."""
    return "transformers.modeling_utils" in sys.modules


@contextmanager
def watch(see: See, claim: Claim) -> Iterator[None]:
    """Tell of each call of attention that a model of transformers makes and `claim()` wants."""
    if _interface() is None:  # the model is not transformers', or `check` would have refused it
        yield
        return
    listener = see, claim
    with _patched.entered():
        _listeners.append(listener)
        try:
            yield
        finally:
            _listeners.remove(listener)


_listeners: list[tuple[See, Claim]] = []  # of all threads; each claim says whether it is meant


@contextmanager
def _patch() -> Iterator[None]:
    interface = _interface()
    original = interface.get_interface

    def get_interface(self: Any, implementation: str, default: Callable) -> Callable:
        function = original(self, implementation, default)

        def call(module: nn.Module, *tensors: Any, **keywords: Any) -> Any:
            caught = None
            with ExitStack() as stack:
                wanted = [see for see, claim in tuple(_listeners) if stack.enter_context(claim())]
                # eager attention has no kernel; one row is computed as fast as its sum is caught
                is_of_rows = not (tensors and tensors[0].shape[2] == 1)
                if wanted and implementation != "eager" and is_of_rows:
                    caught = stack.enter_context(Catching())
                result = function(module, *tensors, **keywords)
            for see in wanted:
                see(translated, implementation, module, tensors, keywords, result[0], caught)
            return result

        return call

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original


_patched = ProcessWide(_patch)


@functools.cache
def uses_it(kind: type) -> bool:
    """Whether a class of transformers has no attention but through the interface.

    One that names a softmax in its own code, and not the interface, computes attention by hand.
    """
    functions = (
        function
        for base in kind.__mro__
        if base.__module__.startswith("transformers.models.")
        for function in vars(base).values()
        if inspect.isfunction(function)
    )
    names = {name for function in functions for name in function.__code__.co_names}
    return "ALL_ATTENTION_FUNCTIONS" in names or not names & BY_HAND


def check(modules: Modules) -> None:
    """Raise `HeedfulError` for a model of a version of transformers that has no interface."""
    is_old = is_loaded() and _interface() is None
    if is_old and any(type(part).__module__.startswith("transformers") for part in modules):
        raise HeedfulError(
            f"transformers {sys.modules['transformers'].__version__}",
            expected="version 5 or newer, whose attention can be seen",
            remedy="pip install --upgrade transformers",
        )


def _interface() -> Any:
    """The class that all models of transformers ask for their attention; None in older versions."""
    modeling = sys.modules["transformers.modeling_utils"]
    interface = getattr(modeling, "AttentionInterface", None)
    return interface if hasattr(interface, "get_interface") else None


def translated(
    implementation: str, module: nn.Module, tensors: tuple, keywords: dict, output: Tensor,
    caught: Catching | None,
) -> Observed:  # fmt: skip
    """The call that the arguments of transformers' interface make."""
    names = ("query", "key", "value", "attention_mask", "dropout", "scaling")
    given = dict(zip(names, tensors, strict=False)) | keywords
    query, key, value = (_as_multiplied(given[name], implementation) for name in names[:3])
    scale = given.get("scaling")
    mask, causal = given.get("attention_mask"), _is_causal(module, given)
    sinks = given.get("s_aux", given.get("sinks"))  # one for each head,
    sinks = sinks[..., 0] if sinks is not None and sinks.ndim == 4 else sinks  # or for each query
    cross, real = getattr(module, "is_cross_attention", None) or None, None
    if flash_attention.is_meant(implementation):
        mask, real = flash_attention.mask_of(given, causal), flash_attention.real_of(given, cross)
    elif implementation == "eager" and mask is not None and mask.dtype == torch.bool:
        mask = mask.to(query.dtype)  # added to the scores, as 1 and 0, whatever was meant by it
    elif mask is None and causal and implementation != "eager" and query.shape[2] > 1:
        mask = TOP_LEFT  # torch aligns its own to the top left; eager applies what it is given
    if sinks is not None:  # a kernel knows nothing of them: they join the scores after it
        caught = None
    return Observed(
        query, key, value, output.transpose(1, 2),
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask, bias=given.get("position_bias"), softcap=given.get("softcap"), sinks=sinks,
        sums=caught.found(query.shape[:3]) if caught else None, axes=AXES, cross=cross,
        causal=causal, real=real, door=f"transformers, {implementation}",
        why=DROPPED if given.get("dropout") else "",
    )  # fmt: skip


def _as_multiplied(side: Tensor, implementation: str) -> Tensor:
    """A query, key or value in the type in which it is multiplied: autocast's, where that is on,
    though a rotation by float32 tables has made it float32 again."""
    device = side.device.type
    is_cast = implementation in ("eager", "sdpa") and torch.is_autocast_enabled(device)
    if not is_cast or side.dtype == torch.float64:
        return side
    return side.to(torch.get_autocast_dtype(device))


def _is_causal(module: nn.Module, given: dict) -> bool:
    asked = given.get("is_causal")
    return bool(getattr(module, "is_causal", True) if asked is None else asked)
