"""Floor 3: records the attention of any PyTorch model while it runs; imports `ops`, no model."""

from heedful.recorder.record import record

__all__ = ["record"]
