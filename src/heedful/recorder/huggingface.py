"""The second door: the interface through which transformers' models call attention.

Whatever implementation a model uses (eager, sdpa, flex) is called as before; its query, key, mask
and keywords are seen on the way. Registering an implementation of our own would be worse: without
a mask function of its name, padding and causality would vanish in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.ops.masks import Causal
from heedful.recorder.capture import Seen
from heedful.recorder.recognise import mask_and_bias


def is_loaded() -> bool:
    """Whether the process has models of transformers at all; only then is it touched."""
    return "transformers.modeling_utils" in sys.modules


@contextmanager
def watch(
    see: Callable[[Seen], None], claim: Callable[[], AbstractContextManager[bool]]
) -> Iterator[None]:
    """Tell of every call of attention by a model of transformers, where `claim()` says so."""
    interface = _interface()
    if interface is None:  # what runs is none of its models, or `check` would have refused it
        yield
        return
    original = interface.get_interface

    def get_interface(self: Any, implementation: str, default: Callable) -> Callable:
        function = original(self, implementation, default)

        def call(module: nn.Module, *tensors: Any, **keywords: Any) -> Any:
            with claim() as wanted:
                result = function(module, *tensors, **keywords)
            if wanted:
                see(translated(implementation, module, tensors, keywords, result[0]))
            return result

        return call

    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original


def check(model: nn.Module) -> None:
    """Raise for a model of a transformers that is too old to be seen.

    Raises:
        HeedfulError: with the version that is needed.
    """
    if not is_loaded() or _interface() is not None:
        return
    if any(type(part).__module__.startswith("transformers") for part in model.modules()):
        raise HeedfulError(
            f"transformers {sys.modules['transformers'].__version__}",
            expected="version 5 or newer, whose attention can be seen",
            remedy="pip install --upgrade transformers",
        )


def _interface() -> Any:
    """The class that all models of transformers ask for their attention; older ones have none."""
    modeling = sys.modules["transformers.modeling_utils"]
    interface = getattr(modeling, "AttentionInterface", None)
    return interface if hasattr(interface, "get_interface") else None


def translated(
    implementation: str, module: nn.Module, tensors: tuple, keywords: dict, output: Tensor
) -> Seen:
    """A call as all doors tell it."""
    names = ("query", "key", "value", "attention_mask", "dropout", "scaling")
    given = dict(zip(names, tensors, strict=False)) | keywords
    query, key = given["query"], given["key"]
    scale = given.get("scaling")
    allowed, bias = mask_and_bias(given.get("attention_mask"), query, key)
    if given.get("position_bias") is not None:
        bias = given["position_bias"] if bias is None else bias + given["position_bias"]
    mask: Causal | Tensor | None = allowed
    if given.get("attention_mask") is None and _is_causal(implementation, module, given, query):
        mask = Causal(0)  # torch aligns its own to the top left
    return Seen(
        query,
        key,
        given["value"],
        output.transpose(1, 2),
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        bias=bias,
        cap=given.get("softcap"),
        sinks=given.get("s_aux"),
        dropout=given.get("dropout") or 0.0,
        door=f"transformers, {implementation}",
        cross=getattr(module, "is_cross_attention", None) or None,
    )


def _is_causal(implementation: str, module: nn.Module, given: dict, query: Tensor) -> bool:
    """Whether no mask means causal; eager attention applies what it is given, and nothing else."""
    asked = given.get("is_causal")
    causal = getattr(module, "is_causal", True) if asked is None else asked
    return implementation != "eager" and query.shape[2] > 1 and bool(causal)
