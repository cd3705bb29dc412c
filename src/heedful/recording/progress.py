"""Progress callbacks for passes over long maps, called after each block of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from heedful.ops.statistics import Statistic
from heedful.ops.weight_blocks import Block

OnProgress: TypeAlias = Callable[[float], None]


def sub_progress(progress: OnProgress | None, index: int, count: int) -> OnProgress:
    """Return a callback for task `index` (from 0) of `count` tasks of equal size."""
    return lambda share: None if progress is None else progress((index + share) / count)


class Progress(Statistic):
    """A statistic without a result that reports the completed share of rows after each block.

    `queries` is the number of queries in the pass; default all of the map.
    """

    def __init__(self, progress: OnProgress, queries: int | None = None) -> None:
        self.progress, self.queries = progress, queries
        self.rows = 0

    def update(self, block: Block) -> None:
        """Count the block's rows."""
        H, N, _ = block.shape
        N = N if self.queries is None else self.queries
        self.rows += (block.heads.stop - block.heads.start) * len(block.queries)
        self.progress(self.rows / (H * N) if N else 1.0)

    def merge(self, other: Any) -> None:
        """Do nothing: calls of a callback cannot be merged."""

    def result(self) -> None:
        """Return None: there is no result."""
