"""Checks of the texts that a model reads: their number and length, and truncation."""

from __future__ import annotations

import sys
import warnings

from heedful.errors import ArgumentError, TextError


class TruncationWarning(UserWarning):
    """A text is longer than the model's context, and only its beginning is read."""


def refuse_second(second: str | None, model: str) -> None:
    """Raise an `ArgumentError` for a second text; `model` describes the model, such as "a GPT"."""
    if second is not None:
        raise ArgumentError(
            "a second text", expected="one text", cause=f"{model} reads no pairs, but a BERT does"
        )


def check_not_empty(tokens: int) -> None:
    """Raise a `TextError` if a text has no tokens."""
    if not tokens:
        raise TextError(
            "an empty text",
            expected="at least one token",
            cause="only white space, or characters that the tokenizer drops",
            remedy="pass a text with words",
        )


def check_length(tokens: int, context_length: int | None, cut: bool) -> bool:
    """Return whether `tokens` tokens fit into the model's context; None is unlimited.

    `tokens` includes special tokens. If the text does not fit, issue a `TruncationWarning` if `cut`
    is True, else raise a `TextError`.
    """
    if context_length is None or tokens <= context_length:
        return True
    if not cut:
        raise TextError(
            f"a text of {tokens:,} tokens",
            expected=f"at most the model's context of {context_length:,}",
            remedy="pass a shorter text, or --cut (in Python cut=True) to read only its beginning",
        )
    message = f"the text is cut: {context_length:,} of its {tokens:,} tokens are read"
    warnings.warn(message, TruncationWarning, stacklevel=4)  # where `read` is called
    return False


def room_for_text(special: int, context_length: int | None, max_tokens: int | None) -> int:
    """Return how many tokens of a text fit into a context of `max_tokens` tokens.

    `special` is the number of special tokens in a context. `max_tokens` defaults to the model's
    context, `context_length`, where None means unlimited.

    Raises:
        ArgumentError: `max_tokens` exceeds the model's context, or leaves no room for a token.
    """
    longest = sys.maxsize if context_length is None else context_length
    limit = longest if max_tokens is None else max_tokens
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
