"""The places where the output of attention can be replaced, with gradients intact.

These are `heedful.attention`, transformers' `AttentionInterface`, and torch's
`scaled_dot_product_attention` (SDPA), also as `nn.MultiheadAttention` calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.errors import ArgumentError
from heedful.ops import dispatch
from heedful.ops.arguments import Arguments
from heedful.ops.sdpa import four_axes
from heedful.recorder.doors import heedful_attention, torch_operations, transformers_interface
from heedful.recorder.doors.sdpa import from_kernel
from heedful.recorder.observed_call import AXES, Observed
from heedful.recording.module_names import Modules

# Receives functions that return the call without its output, and the output, (B, H, N, v); returns
# the output that the model is to use, and a description of the change ("" if none)
Apply: TypeAlias = Callable[[Callable[[], Observed], Callable[[], Tensor]], tuple[Tensor, str]]
SDPA = F.scaled_dot_product_attention
DOOR = "scaled_dot_product_attention"
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@contextmanager
def entered(modules: Modules, apply: Apply, note: Callable[[], str]) -> Iterator[None]:
    """Let `apply` replace the output of each call; `note()` describes the change of the next."""

    def change(call: Any, run: Callable[[], Tensor]) -> tuple[Tensor, str]:
        if not isinstance(call, Arguments):
            return apply(call, run)
        lead, build = call.shape[:-2], functools.partial(heedful_attention.from_arguments, call)
        output, what = apply(build, lambda: four_axes(run(), lead))
        return output.reshape(*lead, *output.shape[-2:]), what

    with ExitStack() as stack:
        stack.enter_context(dispatch.changing(change))
        if transformers_interface.is_loaded():
            stack.enter_context(transformers_interface.patched.entered())
        if not all(map(torch_operations.is_covered, modules)):
            stack.enter_context(SDPAMode(apply, note))
        yield


class SDPAMode(TorchFunctionMode):
    """Replaces the outputs of SDPA. It runs above autograd, so gradients pass through a change."""

    def __init__(self, apply: Apply, note: Callable[[], str]) -> None:
        super().__init__()
        self.apply, self.note = apply, note

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        if function is SDPA and not dispatch.is_running():
            return self._attend(function, *arguments, **keywords)
        if function is F.multi_head_attention_forward and F.scaled_dot_product_attention is SDPA:
            # this function calls SDPA inside torch, where no mode is active
            F.scaled_dot_product_attention = functools.partial(self._attend, SDPA)
            try:
                return function(*arguments, **keywords)
            finally:
                F.scaled_dot_product_attention = SDPA
        return function(*arguments, **keywords)

    def _attend(self, function: Any, *arguments: Any, **keywords: Any) -> Tensor:
        with dispatch.noted(self.note()):  # a recorder reports the call while it runs
            output = function(*arguments, **keywords)
        inputs = dict(zip(NAMES, arguments, strict=False)) | keywords
        changed, _ = self.apply(
            functools.partial(_from_sdpa, inputs),
            lambda: output if output.ndim == 4 else output[None, None],
        )
        return changed.reshape(output.shape)


def _from_sdpa(inputs: dict[str, Any]) -> Observed:
    """Return the call of SDPA with these arguments; with four axes, the second is the heads."""
    query = inputs["query"]
    if query.ndim not in (2, 4):
        raise ArgumentError(
            f"scaled_dot_product_attention of a query {tuple(query.shape)}",
            expected="(batch, heads, queries, width) or (queries, width)",
            cause="an axis that may be texts or heads",
        )
    tensors = {name: inputs[name] for name in NAMES[:3]}
    four = {name: t if t.ndim == 4 else t[None, None] for name, t in tensors.items()}
    return replace(from_kernel(DOOR, (None,), inputs | four), axes=AXES)
