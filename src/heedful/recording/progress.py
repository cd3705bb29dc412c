"""Tells block by block how far a pass over a long map has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block

Tell: TypeAlias = Callable[[float], None]


def within(tell: Tell | None, at: int, of: int) -> Tell:
    """Tells the share of one of several, from 0, as a share of all."""
    return lambda share: None if tell is None else tell((at + share) / of)


class Progress(Statistic):
    """A statistic that gathers nothing, but tells after each block the share of rows done, 0–1.

    `queries` is how many there are to go through; default all of the map.
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
