"""Tensors that several processes make together: each makes its share, and all have the whole.

A process alone makes all, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch.distributed as dist
from torch import Tensor

from heedful.processes import Processes


def shared_out(
    function: Callable[[Tensor], Tensor], stacks: Iterable[Tensor], here: Processes
) -> Iterator[Tensor]:
    """A function of each of many things, of which each process takes its share.

    Args:
        function: of some of the things, (b, …) to (b, …).
        stacks: the things, (B, …) each; those of one stack all have the same shape.
        here: which process this is.
    """
    if here.is_alone:
        yield from map(function, stacks)
        return
    found, lengths = [], []
    for stack in stacks:
        each = -(-len(stack) // here.size)
        mine = stack[each * here.rank : each * (here.rank + 1)]
        found.append(function(mine) if len(mine) else mine.clone())
        lengths.append(len(stack))
        del stack, mine  # no two stacks wait in memory, and none while the message is made
    yield from joined(found, lengths, here)


def joined(rows: Sequence[Tensor], lengths: Sequence[int], here: Processes) -> list[Tensor]:
    """Tensors that are cut by their rows among the processes, as `torch.chunk` cuts, whole.

    One message has all of them: who waits for the others waits once.

    Args:
        rows: those of each tensor that this process has, (r, …); the last ones may have none.
        lengths: the rows of each that all processes have together.
        here: which process this is.
    """
    each = [-(-length // here.size) for length in lengths]
    of_row = [math.prod(own.shape[1:]) for own in rows]
    sent = here.size * sum(most * numbers for most, numbers in zip(each, of_row, strict=True))
    made = sum(length * numbers for length, numbers in zip(lengths, of_row, strict=True))
    if sent > 2 * made:  # mostly padding: a sum sends everything twice, and nothing else
        return _summed(rows, lengths, each, here)
    return _gathered(rows, lengths, each, here)


def _gathered(
    rows: Sequence[Tensor], lengths: Sequence[int], each: Sequence[int], here: Processes
) -> list[Tensor]:
    """By parts of one size: those of processes that have fewer rows are padded."""
    sizes = [most * math.prod(own.shape[1:]) for most, own in zip(each, rows, strict=True)]
    mine = rows[0].new_zeros(sum(sizes))
    for place, own in zip(mine.split(sizes), rows, strict=True):
        place[: own.numel()] = own.flatten()
    every = mine.new_empty(here.size * len(mine))
    dist.all_gather_single(every, mine)
    of_all = every.view(here.size, -1).split(sizes, dim=1)
    return [
        of_each.reshape(-1, *own.shape[1:])[:length]
        for of_each, own, length in zip(of_all, rows, lengths, strict=True)
    ]


def _summed(
    rows: Sequence[Tensor], lengths: Sequence[int], each: Sequence[int], here: Processes
) -> list[Tensor]:
    """By a sum in which each process has zeros for what the others have."""
    sizes = [length * math.prod(own.shape[1:]) for length, own in zip(lengths, rows, strict=True)]
    total = rows[0].new_zeros(sum(sizes))
    wholes = [
        part.view(length, *own.shape[1:])
        for part, length, own in zip(total.split(sizes), lengths, rows, strict=True)
    ]
    for whole, own, most in zip(wholes, rows, each, strict=True):
        whole[most * here.rank :][: len(own)] = own
    dist.all_reduce(total)
    return wholes
