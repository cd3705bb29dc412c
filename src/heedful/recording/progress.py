"""Tells block by block how far a pass over a long map has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from heedful.ops.blocks import Block
from heedful.ops.statistics import Statistic

Tell: TypeAlias = Callable[[float], None]


class Progress(Statistic):
    """A statistic that gathers nothing, but tells after each block the share of rows done, 0–1.

    Args:
        tell: is told.
        queries: how many there are to go through; default all of the map.
    """

    def __init__(self, tell: Tell, queries: int | None = None) -> None:
        self.tell, self.queries = tell, queries
        self.rows = 0

    def update(self, block: Block) -> None:
        """Count the block's rows."""
        H, N, _ = block.shape
        N = N if self.queries is None else self.queries
        self.rows += (block.heads.stop - block.heads.start) * len(block.queries)
        self.tell(self.rows / (H * N) if N else 1.0)

    def merge(self, other: Any) -> None:
        """Do nothing: what was told cannot be merged."""

    def result(self) -> None:
        """None: nothing was gathered."""
