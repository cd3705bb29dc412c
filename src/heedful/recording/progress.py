"""Callbacks for the progress of a computation, called after each block of rows of a map."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block

OnProgress: TypeAlias = Callable[[float], None]


def sub_progress(progress: OnProgress | None, index: int, count: int) -> OnProgress:
    """Return the callback for task `index` (from 0) of `count` tasks that take equally long."""
    return lambda share: None if progress is None else progress((index + share) / count)


class Progress(Statistic):
    """A statistic that only reports progress: the share of rows that are computed, 0 to 1.

    progress: the callback. queries: the number of queries to compute; default all of the map.
    """

    def __init__(self, progress: OnProgress, queries: int | None = None) -> None:
        self.progress, self.queries = progress, queries
        self.rows = 0

    def update(self, block: Block) -> None:
        """Count the rows of a block, and call the callback."""
        H, N, _ = block.shape
        N = N if self.queries is None else self.queries
        self.rows += (block.heads.stop - block.heads.start) * len(block.queries)
        self.progress(self.rows / (H * N) if N else 1.0)

    def result(self) -> None:
        """Return None."""
