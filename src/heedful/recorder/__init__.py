"""Floor 3: recording the attention of any PyTorch model; knows `ops`, and no model."""

from heedful.recorder.kept.call import Call
from heedful.recorder.kept.certificate import Check
from heedful.recorder.kept.recording import Recording, Sequence, from_attentions, load
from heedful.recorder.record import record

__all__ = ["Call", "Check", "Recording", "Sequence", "from_attentions", "load", "record"]
