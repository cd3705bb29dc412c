"""The base class of heedful's errors, and the form of their messages.

Every error that heedful raises on purpose is a `HeedfulError`. Its message is one printable line:
the problem and, if known, what was expected, the likely cause and the remedy. Each subclass also
inherits from a built-in error, `ValueError` or `OSError`, so that ordinary `except` clauses work.
"""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Replace control characters, which could change what a terminal shows, by visible signs.

    >>> printable("\\x1b[31mred\\x7f")
    '␛[31mred�'
    """
    return CONTROL.sub(lambda c: chr(0x2400 + ord(c[0])) if c[0] < " " else "\ufffd", text)


class HeedfulError(Exception):
    """Base class of every error that heedful raises on purpose.

    Args:
        problem: the invalid value, shape or file.
        expected: a description of valid input.
        cause: the likely cause.
        remedy: how to correct the problem.

    >>> print(HeedfulError("12 heads", expected="a divisor of the width 64", remedy="try 8 heads"))
    12 heads; expected a divisor of the width 64; try 8 heads
    """

    def __init__(
        self,
        problem: str,
        *,
        expected: str | None = None,
        cause: str | None = None,
        remedy: str | None = None,
    ) -> None:
        parts = [
            problem,
            expected and f"expected {expected}",
            cause and f"likely cause: {cause}",
            remedy,
        ]
        super().__init__(printable(" ".join("; ".join(part for part in parts if part).split())))


class ArgumentError(HeedfulError, ValueError):
    """An invalid argument, option or configuration field."""


class TextError(HeedfulError, ValueError):
    """A text that is unreadable, empty or too short, or has symbols unknown to the tokenizer."""


class RunError(HeedfulError, ValueError):
    """A model or run directory with missing or damaged files."""


class SaveError(HeedfulError, OSError):
    """A file that could not be written; its earlier version is intact."""


def valid_unicode(text: str) -> str:
    """Return the text; raise a `TextError` if UTF-8 cannot encode it.

    Lone surrogates come from a command line or a file that is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"the character {text[error.start]!r} at position {error.start}",
            expected="text that UTF-8 can encode",
            cause="bytes in another encoding",
            remedy="convert the text to UTF-8",
        ) from None
    return text
