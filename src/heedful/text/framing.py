"""What a model like BERT reads of a text or a pair: framed, and cut where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heedful.errors import ArgumentError


class Inputs(NamedTuple):
    """What BERT reads of a text or a pair: ids, and for each 0 or 1, the text that it is of."""

    ids: list[int]
    segments: list[int]


class Span(NamedTuple):
    """The characters that a token stands for: of which of two texts, 0 or 1, from where to where.

    The end is not included.
    """

    text: int
    start: int
    end: int


def kept(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens stay of each of one or two texts, the longer one cut first.

    Args:
        lengths: the tokens of each text, without the frame.
        room: how many tokens there is room for, beside the frame.

    Raises:
        ArgumentError: no room for a token of each.

    >>> kept([7], 5), kept([7, 2], 5), kept([7, 4], 5)
    ([5], [3, 2], [3, 2])
    """
    if room < len(lengths):
        raise ArgumentError(
            f"room for {max(room, 0)} tokens beside the frame of a text",
            expected=f"{len(lengths)} or more",
            cause="a model whose context is as short as the frame",
        )
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer = room - shorter
    return [longer, shorter] if lengths[0] > lengths[1] else [shorter, longer]


def in_contexts(ids: Sequence[int], room: int) -> list[Sequence[int]]:
    """The tokens of a text cut into runs of `room`, the last as long as what is left.

    >>> in_contexts([5, 6, 7, 8, 9], 2), in_contexts([], 2)
    ([[5, 6], [7, 8], [9]], [])
    """
    return [ids[start : start + room] for start in range(0, len(ids), room)]
