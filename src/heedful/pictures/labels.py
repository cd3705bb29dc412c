"""Any text as something that a picture can show: short, literal, with glyphs that exist.

Matplotlib draws an empty box and warns where no font has a character. Here such a character
becomes its code point, so that a reader can still tell two tokens apart. Of names of tokens beside
each other no two look alike: a token that stands more than once carries its position, counted from
0, in small digits; so does one with a character that no font here has, and one whose name is cut
like another's.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby

from matplotlib import font_manager

# DejaVu Sans comes with matplotlib. The others are what Linux, macOS and Windows bring for the
# scripts that it lacks; colour emoji fonts are left out, since matplotlib cannot draw them.
FAMILIES = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "PingFang SC",
    "Hiragino Sans GB", "Microsoft YaHei", "WenQuanYi Zen Hei", "Apple SD Gothic Neo",
    "Malgun Gothic", "Noto Sans Arabic", "Noto Sans Devanagari", "Nirmala UI", "Noto Sans Thai",
    "Arial Unicode MS", "Noto Emoji", "Segoe UI Emoji",
)  # fmt: skip
SIGNS = {  # each white space its own: two that differ are two tokens
    " ": "·",
    "\n": "↵",
    "\r": "⇤",
    "␍": "⇤",  # how tokenizers here write it, which DejaVu Sans lacks
    "\t": "⇥",
    "\v": "⇩",
    "\f": "⇟",
    "\u00a0": "⍽",
    "\u3000": "▭",
}
DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
UNKNOWN = "□"  # a character that no font here has
LONGEST = 12  # columns of a name
SEPARATORS = {"[SEP]", "</s>", "<sep>", "<|endoftext|>", "<eos>", "<|end_of_text|>"}
PADDING = {"[PAD]", "<pad>"}


@cache
def families() -> tuple[str, ...]:
    """The names in `FAMILIES` that this machine has, in that order; DejaVu Sans always."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in FAMILIES if name in installed)


def drawable(text: str) -> str:
    """The text with every character that cannot be drawn written as its code point.

    Args:
        text: anything: control characters, lone surrogates, any script.

    Returns:
        the same text where a font has it; elsewhere `U+0007`, and a run as `U+0007 0008`, set
        off by spaces.

    >>> drawable("price: $5")
    'price: $5'
    >>> drawable("a\\x07\\x08b")
    'a U+0007 0008 b'
    """
    parts = ((shown, "".join(run)) for shown, run in groupby(text, has_glyph))
    return " ".join(
        part if shown else "U+" + " ".join(f"{ord(char):04X}" for char in part)
        for shown, part in parts
    )


def hint(texts: Iterable[str]) -> str | None:
    """What to do so that all characters are drawn; None where they are already.

    >>> hint(["attention", "é"]) is None
    True
    """
    missing = dict.fromkeys(
        char for text in texts for char in text if char.isprintable() and _family(char) is None
    )
    if not missing:
        return None
    return (
        f"no font here draws {shorten(''.join(missing), 24)}; the pictures have numbers instead. "
        "Install a font of that script, such as Noto Sans CJK or Noto Sans Arabic, and draw again."
    )


def label(token: str, limit: int = 12) -> str:
    """A token as an axis label: white space made visible, long tokens cut with an ellipsis.

    Args:
        token: the token's text, as decoded.
        limit: the most columns that it may take (a Chinese character takes two).

    Returns:
        text with at least one visible character.

    >>> [label(" the"), label("\\n"), label(""), label("internationalisation")]
    ['·the', '↵', '∅', 'internation…']
    """
    if not token:
        return "∅"
    if unicodedata.combining(token[0]):
        token = "◌" + token
    return shorten(drawable("".join(SIGNS.get(char, char) for char in token)), limit)


def shorten(text: str, limit: int) -> str:
    """The text cut to at most `limit` columns, the last an ellipsis where something was cut.

    >>> shorten("layer 3, head 11", 8)
    'layer 3…'
    """
    if columns(text) <= limit:
        return text
    kept = ""
    for char in text:
        if columns(kept + char) >= limit:
            break
        kept += char
    return kept.rstrip(" ,") + "…"


def columns(text: str) -> int:
    """How many columns a text takes: two for a wide character, none for a combining one.

    >>> columns("heads"), columns("注意"), columns("e\\u0301")
    (5, 4, 1)
    """
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def families_of(text: str) -> list[str]:
    """The fonts that a text needs, DejaVu Sans first; no other font file is opened for it.

    >>> families_of("attention")
    ['DejaVu Sans']
    """
    needed = (_family(char) for char in text)
    return list(dict.fromkeys(["DejaVu Sans", *(name for name in needed if name)]))


def has_glyph(char: str) -> bool:
    """Whether a font here draws a character.

    >>> has_glyph("é"), has_glyph("\\x07")
    (True, False)
    """
    return _family(char) is not None


def _family(char: str) -> str | None:
    """The first family that can draw a character; None for control characters and the like."""
    if not char.isprintable():
        return None
    for name in families():
        if font_manager.get_font(font_manager.findfont(name)).get_char_index(ord(char)):
            return name
    return None


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
