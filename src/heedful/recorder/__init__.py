"""Floor 3: seeing the attention of any PyTorch model while it runs; knows `ops`, and no model."""

from heedful.recorder.record import record

__all__ = ["record"]
