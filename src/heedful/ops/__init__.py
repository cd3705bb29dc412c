"""Floor 1: pure tensor functions, no modules."""

from heedful.ops import masks, positions, reference
from heedful.ops.attention import attention
from heedful.ops.stepping import Steps, steps

__all__ = ["Steps", "attention", "masks", "positions", "reference", "steps"]
