"""Finds the module of a method that runs while no module is being called.

No hook tells of a method such as `encode`. Its Python frame does: its `self` is the module.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch import nn

from heedful.recorder.module_names import plain_name
from heedful.recorder.running import Modules


def name_of_method(modules: Modules) -> str | None:
    """The name of the module whose method runs; None where it is none of these.

    The innermost method of any module counts: what another model does, called from one of these or
    from the user's code, is not theirs.
    """
    owner = _owner(sys._getframe(1))
    if owner is None:
        return None
    name = next((name for one, name in modules.items() if one is owner), None)
    return None if name is None else plain_name(name) or type(owner).__name__


def _owner(frame: FrameType | None) -> nn.Module | None:
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                return owner
        frame = frame.f_back
    return None
