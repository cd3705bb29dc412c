"""Where autocast narrows products on a CPU, attention stays in float32.

torch's kernel there takes four times as long for the gradient in bfloat16, and every other road
(dropout, `vmap`, the definition) gives what the kernel gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from heedful.ops.arguments import Arguments

Made = TypeVar("Made")


def in_float32(function: Callable[[Arguments], Made], arguments: Arguments) -> Made:
    """What a function makes of arguments, those of autocast's type widened where it is on.

    Without autocast, and on other devices, the arguments are given on as they are.
    """
    if arguments.query.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return function(arguments)
    query, key, value = map(_wide, (arguments.query, arguments.key, arguments.value))
    with torch.autocast("cpu", enabled=False):
        return function(arguments._replace(query=query, key=key, value=value))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.get_autocast_dtype("cpu") else tensor
