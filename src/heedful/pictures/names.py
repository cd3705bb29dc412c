"""Names of tokens beside each other: each is literal where it can be, and no two look alike.

A token that stands more than once carries its position, counted from 0, in small digits; so does
one with a character that no font here has, and one whose name is cut like another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from heedful.pictures.labels import columns, has_glyph, label, shorten

DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
UNKNOWN = "□"  # a character that no font here has
LONGEST = 12  # columns of a name
SEPARATORS = {"[SEP]", "</s>", "<sep>", "<|endoftext|>", "<eos>", "<|end_of_text|>"}
PADDING = {"[PAD]", "<pad>"}


def names(tokens: Sequence[str], limit: int = LONGEST) -> list[str]:
    """A name for each token, all different.

    Args:
        tokens: their texts, as decoded.
        limit: the most columns that a name may take.

    >>> names(["the", " cat", "and", "the", "\\n", ""])
    ['the₀', '·cat', 'and', 'the₃', '↵', '∅']
    """
    marked = [_marked(token) for token in tokens]
    plain = [label(token, limit) for token in marked]
    count = Counter(plain)
    found = [
        numbered(name, i, limit) if count[name] > 1 or token != given else name
        for i, (name, token, given) in enumerate(zip(plain, marked, tokens, strict=True))
    ]
    if len(set(found)) < len(found):  # a token that itself ends in small digits
        return [numbered(name, i, limit) for i, name in enumerate(plain)]
    return found


def numbered(name: str, position: int, limit: int = LONGEST) -> str:
    """A name with its position in small digits, in at most `limit` columns.

    >>> numbered("internation…", 3), numbered("the", 12)
    ('internatio…₃', 'the₁₂')
    """
    digits = str(position).translate(DIGITS)
    room = max(1, limit - len(digits))
    return (name if columns(name) <= room else shorten(name.rstrip("…") + "…", room)) + digits


def borders(tokens: Sequence[str]) -> list[int]:
    """The places at which a text begins after another, as after BERT's first `[SEP]`.

    >>> borders(["[CLS]", "where", "[SEP]", "here", "[SEP]"])
    [3]
    """
    return [
        i
        for i in range(1, len(tokens))
        if tokens[i - 1] in SEPARATORS and tokens[i] not in SEPARATORS | PADDING
    ]


def places(count: int, size: int = 1) -> list[str]:
    """The names of nameless things: the number of each, or of the first in a cell of `size`.

    >>> places(3), places(3, 16)
    (['0', '1', '2'], ['0', '16', '32'])
    """
    return [f"{i * size:,}" for i in range(count)]


def patches(rows: int, columns: int, before: int = 0) -> list[str]:
    """The names of the patches of an image, by row and column, after `before` special tokens.

    >>> patches(2, 2, before=1)
    ['class', 'patch 0,0', 'patch 0,1', 'patch 1,0', 'patch 1,1']
    """
    special = ["class"] if before == 1 else [f"special {i}" for i in range(before)]
    return special + [f"patch {r},{c}" for r in range(rows) for c in range(columns)]


def _marked(token: str) -> str:
    """The token with a sign for each character that could be printed, had a font it."""
    return "".join(char if has_glyph(char) or not char.isprintable() else UNKNOWN for char in token)
