"""Runs compiled models uncompiled, so that doors see them and nothing is compiled anew."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from heedful.recorder.doors.process_wide import ProcessWide
from heedful.recording.module_names import Modules

KNOWN = ("heedful.", "torch.nn.")  # modules that compile nothing while they run
_eager = ProcessWide(lambda: torch.compiler.set_stance("force_eager"))


def uncompiled(modules: Modules) -> AbstractContextManager[None]:
    """A context in which nothing runs compiled; an idle one for a model that compiles nothing."""
    return _eager.entered() if _may_be_compiled(modules) else nullcontext()


def _may_be_compiled(modules: Modules) -> bool:
    """Whether something of the model may be compiled; asking torch's compiler takes a second.

    It is there where anything was compiled before. Code of others may do it while it runs; what
    the caller compiles only inside the block is recorded too, with warnings of the compiler's.
    """
    if "torch._dynamo" in sys.modules:
        return True
    return not all(type(one).__module__.startswith(KNOWN) for one in modules)
