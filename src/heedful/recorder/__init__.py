"""Floor 3: recording the attention of any PyTorch model; knows `ops`, and no model."""

from heedful.recorder.kept.call import Call
from heedful.recorder.kept.certificate import Check
from heedful.recorder.kept.head_totals import HeadTotals
from heedful.recorder.kept.heads import Head
from heedful.recorder.kept.recording import Recording, from_attentions, load
from heedful.recorder.kept.segments import Segments, SegmentShare
from heedful.recorder.kept.sequence import Sequence
from heedful.recorder.record import record

__all__ = [
    "Call",
    "Check",
    "Head",
    "HeadTotals",
    "Recording",
    "SegmentShare",
    "Segments",
    "Sequence",
    "from_attentions",
    "load",
    "record",
]
