"""Who takes which of some pieces of work, when several processes share them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def shares(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """The pieces of each process: the largest first, each to whoever has least so far.

    No process then has more than 4/3 of what the best sharing would leave the busiest (Graham 1969,
    *Bounds on multiprocessing timing anomalies*).

    Args:
        sizes: how much work each piece is.
        processes: how many there are to share it.

    Returns:
        for each process the numbers of its pieces, in their order; each piece is of one process.

    >>> shares([5, 1, 9, 4, 4], 2)
    [[2, 4], [0, 1, 3]]
    """
    loads = [(0, rank) for rank in range(processes)]
    found: list[list[int]] = [[] for _ in loads]
    for piece in sorted(range(len(sizes)), key=lambda piece: (-sizes[piece], piece)):
        load, rank = heapq.heappop(loads)
        found[rank].append(piece)
        heapq.heappush(loads, (load + sizes[piece], rank))
    return [sorted(pieces) for pieces in found]
