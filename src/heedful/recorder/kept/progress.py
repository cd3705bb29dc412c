"""How far a pass over a long map is, told block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from heedful.ops.blocks import Block
from heedful.ops.statistics import Statistic

Tell: TypeAlias = Callable[[float], None]


class Progress(Statistic):
    """Gathers nothing; tells which share of the rows is done, 0 to 1, after each block."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.rows = 0

    def update(self, block: Block) -> None:
        """Count the block's rows."""
        H, N, _ = block.shape
        self.rows += (block.heads.stop - block.heads.start) * len(block.queries)
        self.tell(self.rows / (H * N) if N else 1.0)

    def merge(self, other: Any) -> None:
        """What was told stays told."""

    def result(self) -> None:
        """Nothing."""
