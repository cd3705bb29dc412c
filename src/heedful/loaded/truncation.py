"""Checks of a text's length: empty texts raise errors, long texts are truncated or raise errors."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from heedful.errors import ArgumentError, TextError


class TruncationWarning(UserWarning):
    """A text is longer than the model's context, and only its beginning is read."""


def check_single_text(text: Any) -> None:
    """Raise an `ArgumentError` if the text is not a string, such as a list of strings."""
    if not isinstance(text, str):
        raise ArgumentError(
            f"a text that is {'None' if text is None else f'a {type(text).__name__}'}",
            expected="one string",
            remedy="record several texts one by one, or run `opened.model` on a batch inside "
            "`heedful.record`",
        )


def refuse_second(second: str | None, model: str) -> None:
    """Raise an `ArgumentError` for a second text; `model` is the kind of model, such as "a GPT"."""
    if second is not None:
        raise ArgumentError(
            "a second text", expected="one text", cause=f"{model}; a BERT reads pairs"
        )


def check_not_empty(tokens: int) -> None:
    """Raise a `TextError` if a text has no tokens."""
    if not tokens:
        raise TextError(
            "an empty text",
            expected="at least one token",
            cause="only white space, or characters that the tokenizer drops",
            remedy="give a text with words",
        )


def check_length(tokens: int, context_length: int | None, cut: bool) -> bool:
    """Return whether a text, with special tokens, fits into the context; None is unlimited.

    If it does not fit, issue a `TruncationWarning` if `cut` is True, else raise a `TextError`.
    """
    if context_length is None or tokens <= context_length:
        return True
    if not cut:
        raise TextError(
            f"a text of {tokens:,} tokens",
            expected=f"at most the model's context of {context_length:,}",
            remedy="give a shorter text, or --cut (in Python cut=True) to read only its beginning",
        )
    message = f"the text is cut: {context_length:,} of its {tokens:,} tokens are read"
    warnings.warn(message, TruncationWarning, stacklevel=4)  # where `read` is called
    return False


def room_for_text(special: int, context_length: int | None, most: int | None) -> int:
    """Return the number of a text's tokens that fit into a context of `most` tokens.

    `special` is the number of special tokens around them. The default of `most` is the model's
    context; if that is None, it is unlimited.

    Raises:
        ArgumentError: `most` exceeds the model's context, or leaves no room for a token.
    """
    longest = sys.maxsize if context_length is None else context_length
    limit = longest if most is None else most
    if limit > longest:
        raise ArgumentError(
            f"contexts of {limit:,} tokens", expected=f"at most {longest:,}, the model's context"
        )
    if limit <= special:
        raise ArgumentError(
            f"contexts of {limit:,} tokens",
            expected=f"{special + 1} or more",
            cause=f"{special} are special tokens" if special else None,
        )
    return limit - special
