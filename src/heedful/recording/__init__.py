"""Floor 2: recorded calls of attention: their storage, proofs, maps, statistics and files."""

from heedful.recording.call import Call
from heedful.recording.certificate import Check
from heedful.recording.head_totals import HeadTotals
from heedful.recording.heads import Head
from heedful.recording.recording import Recording, from_attentions, load
from heedful.recording.segment_table import Segments, SegmentShare
from heedful.recording.sequence import Sequence

__all__ = [
    "Call", "Check", "Head", "HeadTotals", "Recording", "SegmentShare", "Segments", "Sequence",
    "from_attentions", "load",
]  # fmt: skip
