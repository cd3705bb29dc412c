"""heedful: attention from first principles; train with it, and see what a model attends to.

Importing it does no work: each public name brings its module, and torch, when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from heedful import errors

if TYPE_CHECKING:
    from heedful.models import load_model
    from heedful.opened import open_model as open
    from heedful.ops import attention, masks, positions, steps, streaming_attention
    from heedful.recorder import load, record

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "attention",
    "errors",
    "load",
    "load_model",
    "masks",
    "open",
    "positions",
    "record",
    "steps",
    "streaming_attention",
]

_HOMES = {
    "attention": "heedful.ops",
    "load": "heedful.recorder",
    "load_model": "heedful.models",
    "masks": "heedful.ops",
    "open": "heedful.opened",
    "positions": "heedful.ops",
    "record": "heedful.recorder",
    "steps": "heedful.ops",
    "streaming_attention": "heedful.ops",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'heedful' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
