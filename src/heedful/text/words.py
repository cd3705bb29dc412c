"""A sentence as the words that a person sees: for explaining, where a token is a word.

Whitespace separates, punctuation stands alone, and what is drawn as one sign stays one. Where a
script has no spaces between words (Chinese, Japanese, Thai …), each sign is a token; to find the
words there takes a dictionary. `views/walk/page/words.js` has the same pattern.
"""

from __future__ import annotations

import regex

from heedful.errors import TextError
from heedful.text.tokenizer import whole_characters

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
    """The words, signs and marks of a text, in order; nothing but whitespace is left out.

    Raises:
        TextError: a text with nothing but whitespace, or with half a surrogate pair.

    >>> words("Don't panic: 3.14 is fine.")
    ["Don't", 'panic', ':', '3.14', 'is', 'fine', '.']
    >>> words("我爱注意力"), words("مرحبا بالعالم"), words("Hi 👩‍🚀🇨🇭")
    (['我', '爱', '注', '意', '力'], ['مرحبا', 'بالعالم'], ['Hi', '👩‍🚀', '🇨🇭'])
    """
    tokens: list[str] = WORD.findall(whole_characters(text))
    if not tokens:
        raise TextError("an empty text", expected="at least one word")
    return tokens
