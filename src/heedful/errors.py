"""One base error, and the wording that all errors share.

Every error that heedful raises on purpose is a `HeedfulError`, says on one line what
came, what was expected, the likely cause and the remedy, and is also the built-in error
that a Python programmer would have caught (`ValueError`, `OSError`).
"""

from __future__ import annotations


class HeedfulError(Exception):
    """The base of every error that the project raises on purpose.

    Args:
        came: what was given or found, with its value or shape.
        expected: what was wanted instead.
        cause: the likely reason, where one is known.
        remedy: what to do now.

    >>> print(HeedfulError("12 heads", expected="a divisor of the width 64", remedy="try 8 heads"))
    12 heads; expected a divisor of the width 64; try 8 heads
    """

    def __init__(
        self,
        came: str,
        *,
        expected: str | None = None,
        cause: str | None = None,
        remedy: str | None = None,
    ) -> None:
        parts = [
            came,
            expected and f"expected {expected}",
            cause and f"likely cause: {cause}",
            remedy,
        ]
        super().__init__(" ".join("; ".join(part for part in parts if part).split()))


class ArgumentError(HeedfulError, ValueError):
    """An argument, an option or a configuration field that does not fit."""


class TextError(HeedfulError, ValueError):
    """A text that is empty, not UTF-8, too short, or has symbols that a tokenizer lacks."""


class RunError(HeedfulError, ValueError):
    """A model or run directory that is missing something or is damaged."""


class SaveError(HeedfulError, OSError):
    """A file that could not be written; what was saved before is still there."""
