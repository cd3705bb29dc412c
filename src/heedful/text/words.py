"""A sentence as the words that a person sees: for explaining, where a token is a word.

Whitespace separates, punctuation stands alone, and what is drawn as one sign stays one. Where a
script has no spaces between words (Chinese, Japanese, Thai …), each sign is a token; to find the
words there takes a dictionary.
"""

from __future__ import annotations

import unicodedata

from heedful.errors import TextError
from heedful.text.tokenizer import whole_characters

JOINER = "\u200d"  # binds two emoji into one
INSIDE = "'’-.,"  # joins letters on both sides of it (don't, well-known), or digits (3.14)
# First and last character of the scripts that are written without spaces
SPACELESS = (
    ("\u0e00", "\u0eff"),  # Thai, Lao
    ("\u1000", "\u109f"),  # Burmese
    ("\u1780", "\u17ff"),  # Khmer
    ("\u3005", "\u30ff"),  # the repetition mark, Hiragana, Katakana
    ("\u3400", "\u9fff"),  # Chinese characters
    ("\uf900", "\ufaff"),
    ("\U00020000", "\U0003ffff"),
)


def words(text: str) -> list[str]:
    """The words, signs and marks of a text, in order; nothing but whitespace is left out.

    Raises:
        TextError: a text with nothing but whitespace, or with half a surrogate pair.

    >>> words("Don't panic: 3.14 is fine.")
    ["Don't", 'panic', ':', '3.14', 'is', 'fine', '.']
    >>> words("我爱注意力"), words("مرحبا بالعالم"), words("Hi 👩‍🚀🇨🇭")
    (['我', '爱', '注', '意', '力'], ['مرحبا', 'بالعالم'], ['Hi', '👩‍🚀', '🇨🇭'])
    """
    found: list[str] = []
    space = True
    for i, char in enumerate(whole_characters(text)):
        if char.isspace():
            space = True
        elif not space and _joins(found[-1], char, text[i + 1 : i + 2]):
            found[-1] += char
        else:
            found.append(char)
            space = False
    if not found:
        raise TextError("an empty text", expected="at least one word")
    return found


def _joins(word: str, char: str, after: str) -> bool:
    """Whether a character belongs to the word before it."""
    if _extends(char):
        return True
    if word[-1] == JOINER:
        return True
    if _is_regional(char):  # two of them make a flag
        return len(word) == 1 and _is_regional(word)
    if char in INSIDE:
        return _in_words(word) and (after.isalnum() if char not in ".," else _both(word, after))
    return _in_words(char) and _in_words(word)


def _both(word: str, after: str) -> bool:
    """Digits on both sides, as in 3.14 or 10,000."""
    return word[-1].isdigit() and after.isdigit()


def _extends(char: str) -> bool:
    """Accents, vowel signs, skin tones, joiners and tags: drawn with what is before them."""
    return unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf") or "🏻" <= char <= "🏿"


def _in_words(text: str) -> bool:
    """Letters and digits of a script that puts spaces between words."""
    return (text[0].isalnum() or text[0] == "_") and not any(
        first <= text[0] <= last for first, last in SPACELESS
    )


def _is_regional(char: str) -> bool:
    return "🇦" <= char <= "🇿"
