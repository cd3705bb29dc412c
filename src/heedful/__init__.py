"""heedful: attention from first principles, and recordings of the attention of any PyTorch model.

Importing heedful is fast: the first use of a public name imports the name's module, and torch.
"""

from typing import TYPE_CHECKING

from heedful import errors
from heedful.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from heedful.interventions import ablate, change, intervene
    from heedful.loaded import open_model as open
    from heedful.models import load_model
    from heedful.ops import attention, masks, positions, steps, streaming_attention
    from heedful.recorder import record
    from heedful.recording import load
    from heedful.views.notebook.display import look

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "ablate",
    "attention",
    "change",
    "errors",
    "intervene",
    "load",
    "load_model",
    "look",
    "masks",
    "open",
    "positions",
    "record",
    "steps",
    "streaming_attention",
]

__getattr__, _ = lazy_exports(__name__)


def __dir__() -> list[str]:
    return __all__
