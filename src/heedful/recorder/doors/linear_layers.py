"""Lets a linear layer run as one operation, where torch takes it apart before a mode sees it.

Outside inference mode `F.linear` reaches a dispatch mode as four operations, three of them views.
The mode costs some microseconds for each, and a transformer has four to seven such layers a block.
So `F.linear` is another function while operations are followed: it runs torch's own without the
mode, and then tells the mode of the whole. Whatever may be more than a layer of the model's goes to
the mode as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.recorder.doors.process_wide import ProcessWide
from heedful.recorder.following.operations import Operations

_modes, _functions = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_level = torch._C._functorch.maybe_current_level  # None outside torch.func


@contextmanager
def _followed() -> Iterator[None]:
    before = F.linear

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        mode = _following()
        if mode is None or not mode.is_layer(input, weight):
            return before(input, weight, bias)
        with torch._C._DisableTorchDispatch():
            made = before(input, weight, bias)
        mode.layer(input, weight, bias, made)
        return made

    builtins = torch.jit._builtins._get_builtin_table()
    builtins[id(linear)] = "aten::linear"  # for layers that are scripted meanwhile
    F.linear = linear
    try:
        yield
    finally:
        del builtins[id(linear)]
        if F.linear is linear:  # else somebody has put theirs around it, which stays
            F.linear = before


as_one = ProcessWide(_followed)


def _following() -> Operations | None:
    """The mode of a recording, where it is the only one of this thread that sees operations."""
    if _modes() != 1 or _functions() or _level() is not None:
        return None
    mode = torch._C._get_dispatch_stack_at(0)
    return mode if type(mode) is Operations else None
