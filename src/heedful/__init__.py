"""heedful: attention from first principles; train with it, and see what a model attends to.

`import heedful` brings attention and its masks. Models, text, training and pictures are modules
of their own, imported when they are used.
"""

from typing import TYPE_CHECKING, Any

from heedful import errors
from heedful.ops import attention, masks, positions, steps

if TYPE_CHECKING:
    from heedful.models import load_model

__version__ = "0.1.0"
__all__ = ["__version__", "attention", "errors", "load_model", "masks", "positions", "steps"]


def __getattr__(name: str) -> Any:
    if name == "load_model":
        from heedful.models import load_model

        return load_model
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")
