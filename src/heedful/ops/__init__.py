"""Floor 1: pure tensor functions, no modules."""

from heedful.ops import masks, positions, reference
from heedful.ops.attention import attention
from heedful.ops.by_definition import Steps, steps
from heedful.ops.streaming import Streamed, streaming_attention

__all__ = [
    "Steps",
    "Streamed",
    "attention",
    "masks",
    "positions",
    "reference",
    "steps",
    "streaming_attention",
]
