"""A long text in pieces, cut where no tokenizer joins what is before with what is after.

The patterns of GPT-2, cl100k_base and o200k_base, which split a text into words before bytes are
paired, never join a letter or a digit with the white space or the sentence mark after it, and
look at nothing before a word. So the tokens of such pieces are the tokens of the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_UP_TO_LAST_SAFE_CUT = re.compile(r".*[^\W_](?=[\s,.;:!?、。，．：；！？])", re.DOTALL)


def cut(blocks: Iterable[str], size: int) -> Iterator[str]:
    """The same text in pieces of at most `size` characters.

    Args:
        blocks: the text, in parts of any size.
        size: the most characters of a piece.

    Returns:
        pieces that end after a letter or a digit and before white space or a sentence mark;
        where `size` characters have no such place, a piece is cut at their end.

    >>> list(cut(["one two, thr", "ee fourteen"], size=11))
    ['one two', ', three', ' fourteen']
    """
    rest = ""
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start > size:
            end = _end(rest, start, start + size)
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _end(text: str, start: int, limit: int) -> int:
    found = _UP_TO_LAST_SAFE_CUT.match(text, start, limit + 1)  # + 1: what comes after the cut
    return found.end() if found else limit
