"""Text for pictures: short labels of tokens, with only characters that a font can draw.

For a character without a glyph, matplotlib draws an empty box and warns. Here `drawable` writes its
code point instead, and `names` writes □. All labels that `names` returns are different: repeated
tokens, tokens with undrawable characters and tokens with equal shortened labels get their position,
counted from 0, in small digits.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby

from matplotlib import font_manager
from rich.cells import cell_len as columns  # 2 for a wide character, 0 for a combining one

from heedful.token_names import DIGITS

# DejaVu Sans is part of matplotlib. The others are part of Linux, macOS or Windows, for scripts
# that DejaVu Sans lacks. Colour emoji fonts are left out, since matplotlib cannot draw them.
FAMILIES = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "PingFang SC",
    "Hiragino Sans GB", "Microsoft YaHei", "WenQuanYi Zen Hei", "Apple SD Gothic Neo",
    "Malgun Gothic", "Noto Sans Arabic", "Noto Sans Devanagari", "Nirmala UI", "Noto Sans Thai",
    "Arial Unicode MS", "Noto Emoji", "Segoe UI Emoji",
)  # fmt: skip
SIGNS = {  # a different sign for each kind of white space
    " ": "·",
    "\n": "↵",
    "\r": "⇤",
    "␍": "⇤",  # used by heedful's tokenizers, but missing in DejaVu Sans
    "\t": "⇥",
    "\v": "⇩",
    "\f": "⇟",
    "\u00a0": "⍽",
    "\u3000": "▭",
}
UNKNOWN = "□"  # for a character without a glyph
LONGEST = 12  # columns of a label
SEPARATORS = {"[SEP]", "</s>", "<sep>", "<|endoftext|>", "<eos>", "<|end_of_text|>"}
PADDING = {"[PAD]", "<pad>"}


@cache
def families() -> tuple[str, ...]:
    """Return the families in `FAMILIES` that are installed, in that order."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in FAMILIES if name in installed)


def drawable(text: str) -> str:
    """Replace each character that no installed font can draw by its code point.

    Args:
        text: any text, including control characters and lone surrogates.

    Returns:
        The text with `U+0007` in place of such a character, or `U+0007 0008` in place of two in
        a row, separated from the text by spaces.

    >>> drawable("price: $5")
    'price: $5'
    >>> drawable("a\\x07\\x08b")
    'a U+0007 0008 b'
    """
    parts = ((is_drawn, "".join(run)) for is_drawn, run in groupby(text, has_glyph))
    return " ".join(
        part if is_drawn else "U+" + " ".join(f"{ord(char):04X}" for char in part)
        for is_drawn, part in parts
    )


def hint(texts: Iterable[str]) -> str | None:
    """Return advice on missing fonts, or None if all printable characters can be drawn.

    >>> hint(["attention", "é"]) is None
    True
    """
    missing = dict.fromkeys(
        char for text in texts for char in text if char.isprintable() and not has_glyph(char)
    )
    if not missing:
        return None
    return (
        f"no installed font draws {shorten(''.join(missing), 24)}; the pictures show code points. "
        "Install a font for that script, such as Noto Sans CJK or Noto Sans Arabic, and draw again."
    )


def label(token: str, limit: int = 12) -> str:
    """Return a token as an axis label, with visible white space and at most `limit` columns.

    Args:
        token: the decoded text of the token.
        limit: maximum width in columns; a Chinese character takes two.

    Returns:
        A text with at least one visible character; shortened texts end with an ellipsis.

    >>> [label(" the"), label("\\n"), label(""), label("internationalisation")]
    ['·the', '↵', '∅', 'internation…']
    """
    if not token:
        return "∅"
    if unicodedata.combining(token[0]):
        token = "◌" + token
    return shorten(drawable("".join(SIGNS.get(char, char) for char in token)), limit)


def shorten(text: str, limit: int) -> str:
    """Cut a text to at most `limit` columns; a cut text ends with an ellipsis.

    >>> shorten("layer 3, head 11", 8)
    'layer 3…'
    """
    if columns(text) <= limit:
        return text
    start = ""
    for char in text:
        if columns(start + char) >= limit:
            break
        start += char
    return start.rstrip(" ,") + "…"


def has_glyph(char: str) -> bool:
    """Return whether an installed font can draw a character.

    >>> has_glyph("é"), has_glyph("\\x07")
    (True, False)
    """
    fonts = (font_manager.get_font(font_manager.findfont(name)) for name in families())
    return char.isprintable() and any(font.get_char_index(ord(char)) for font in fonts)


def names(tokens: Sequence[str], limit: int = LONGEST) -> list[str]:
    """Return a label for each token, all different.

    Args:
        tokens: the decoded texts of the tokens.
        limit: maximum width of a label, in columns.

    >>> names(["the", " cat", "and", "the", "\\n", ""])
    ['the₀', '·cat', 'and', 'the₃', '↵', '∅']
    """
    drawable_tokens = [
        "".join(c if has_glyph(c) or not c.isprintable() else UNKNOWN for c in token)
        for token in tokens
    ]
    plain = [label(token, limit) for token in drawable_tokens]
    count = Counter(plain)
    labels = [
        numbered(name, i, limit) if count[name] > 1 or drawn != token else name
        for i, (name, drawn, token) in enumerate(zip(plain, drawable_tokens, tokens, strict=True))
    ]
    if len(set(labels)) < len(labels):  # some token itself ends in small digits
        return [numbered(name, i, limit) for i, name in enumerate(plain)]
    return labels


def numbered(name: str, position: int, limit: int = LONGEST) -> str:
    """Append the position in small digits to a label, in at most `limit` columns.

    >>> numbered("internation…", 3), numbered("the", 12)
    ('internatio…₃', 'the₁₂')
    """
    digits = str(position).translate(DIGITS)
    room = max(1, limit - len(digits))
    return (name if columns(name) <= room else shorten(name.rstrip("…") + "…", room)) + digits


def borders(tokens: Sequence[str]) -> list[int]:
    """Return the positions at which a second or later text begins, such as after BERT's `[SEP]`.

    >>> borders(["[CLS]", "where", "[SEP]", "here", "[SEP]"])
    [3]
    """
    return [
        i
        for i in range(1, len(tokens))
        if tokens[i - 1] in SEPARATORS and tokens[i] not in SEPARATORS | PADDING
    ]


def position_labels(count: int, size: int = 1) -> list[str]:
    """Return labels with the position of each item, or of the first item of every `size` items.

    >>> position_labels(3), position_labels(3, 16)
    (['0', '1', '2'], ['0', '16', '32'])
    """
    return [f"{i * size:,}" for i in range(count)]


def patches(rows: int, columns: int, special: int = 0) -> list[str]:
    """Return labels of image patches, by row and column, after labels of `special` special tokens.

    >>> patches(2, 2, special=1)
    ['class', 'patch 0,0', 'patch 0,1', 'patch 1,0', 'patch 1,1']
    """
    labels = ["class"] if special == 1 else [f"special {i}" for i in range(special)]
    return labels + [f"patch {r},{c}" for r in range(rows) for c in range(columns)]
