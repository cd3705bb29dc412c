"""Detects whether torch traces a pass, as for an export, instead of computing numbers.

A traced pass cannot be recorded: the operations of the recorder would become part of the graph, or
read numbers that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

TRACED = (
    "a pass that torch traced (torch.export, make_fx, torch.jit.trace, fake tensors, or tensors "
    "on the device meta): such a pass may have no numbers; record a pass with real tensors"
)
_KEYS = torch._C._TorchDispatchModeKey
MODES = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)


def is_traced(arguments: Iterable[Any] = ()) -> bool:
    """Whether torch is tracing, or all tensors among the arguments are on the device "meta"."""
    if torch._C._get_tracing_state() is not None:
        return True
    if any(torch._C._get_dispatch_mode(mode) is not None for mode in MODES):
        return True
    are_meta = [value.is_meta for value in arguments if isinstance(value, Tensor)]
    return bool(are_meta) and all(are_meta)
