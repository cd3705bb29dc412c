"""Runs compiled models uncompiled, so that the doors can intercept their calls."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from heedful.recorder.doors.process_wide import ProcessWide
from heedful.recording.module_names import Modules

KNOWN = ("heedful.", "torch.nn.")  # packages whose modules do not compile while they run
_eager = ProcessWide(lambda: torch.compiler.set_stance("force_eager"))


def uncompiled(modules: Modules) -> AbstractContextManager[None]:
    """Return a context in which compiled code runs uncompiled."""
    # if no compiler is in use, do not load it: this takes a second
    are_known = all(type(module).__module__.startswith(KNOWN) for module in modules)
    return nullcontext() if are_known and "torch._dynamo" not in sys.modules else _eager.entered()
