"""Floor 3: records the attention of any PyTorch model in its forward passes."""

from heedful.recorder.record import record

__all__ = ["record"]
