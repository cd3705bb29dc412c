"""Words of a sentence: the tokens of `heedful explain`.

Whitespace separates words. A punctuation mark is a token, and so is an emoji of several characters.
In scripts without spaces (Chinese, Japanese, Thai …) each character is a token, because splitting
into words requires a dictionary. `views/walk/page/words.js` has the same pattern.
"""

from __future__ import annotations

import regex

from heedful.errors import TextError, valid_unicode

SPACE = r"\t-\r\x1c-\x1f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Thai, Lao; Burmese; Khmer; Japanese with its repetition mark; Chinese
SPACELESS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
DRAWN_WITH = r"[\p{M}\p{Cf}🏻-🏿]*"  # accents, vowel signs, joiners, skin tones
LETTER = rf"(?![{SPACELESS}])[\p{{L}}\p{{N}}_]{DRAWN_WITH}"
# Signs that join letters on both sides (don't, well-known), or digits (3.14)
INSIDE = rf"(?:['’\-](?=[\p{{L}}\p{{N}}])|(?<=\p{{Nd}})[.,](?=\p{{Nd}})){DRAWN_WITH}"
FLAG = rf"[🇦-🇿]{{1,2}}{DRAWN_WITH}"  # two regional letters
SIGN = rf"[^{SPACE}]{DRAWN_WITH}(?:(?<=\u200d)[^{SPACE}]{DRAWN_WITH})*"  # emoji bound by joiners
WORD = regex.compile(rf"{LETTER}(?:{INSIDE}|{LETTER})*|{FLAG}|{SIGN}")


def words(text: str) -> list[str]:
    """Split a text into words, punctuation marks and other signs, without whitespace.

    Raises:
        TextError: the text is empty or only whitespace, or has half a surrogate pair.

    >>> words("Don't panic: 3.14 is fine.")
    ["Don't", 'panic', ':', '3.14', 'is', 'fine', '.']
    >>> words("我爱注意力"), words("مرحبا بالعالم"), words("Hi 👩‍🚀🇨🇭")
    (['我', '爱', '注', '意', '力'], ['مرحبا', 'بالعالم'], ['Hi', '👩‍🚀', '🇨🇭'])
    """
    tokens: list[str] = WORD.findall(valid_unicode(text))
    if not tokens:
        raise TextError("an empty text", expected="at least one word")
    return tokens
