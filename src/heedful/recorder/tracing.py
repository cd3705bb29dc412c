"""Tells a pass that torch traces, as for an export, from one that computes numbers.

A recorder's own operations would become part of the graph, or read numbers that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

TRACED = (
    "a pass that torch traced (torch.export, make_fx, torch.jit.trace, fake tensors or those on "
    "the device meta): it computes no numbers of its own; record a pass with real tensors"
)
_KEYS = torch._C._TorchDispatchModeKey
MODES = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)


def is_traced(given: Iterable[Any] = ()) -> bool:
    """Whether operations of torch are traced now, or all given tensors are on the device meta."""
    if torch._C._get_tracing_state() is not None:
        return True
    if any(torch._C._get_dispatch_mode(one) is not None for one in MODES):
        return True
    are_meta = [one.is_meta for one in given if isinstance(one, Tensor)]
    return bool(are_meta) and all(are_meta)
