"""Floor 3: recording the attention of any PyTorch model; knows `ops`, and no model."""

from heedful.recorder.call import Call
from heedful.recorder.certificate import Check
from heedful.recorder.record import record
from heedful.recorder.recording import Recording, Sequence, from_attentions, load

__all__ = ["Call", "Check", "Recording", "Sequence", "from_attentions", "load", "record"]
