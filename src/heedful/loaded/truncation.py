"""A text that has no tokens, or more than a model reads: refused, or cut where that is asked."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from heedful.errors import ArgumentError, TextError


class TruncationWarning(UserWarning):
    """A text was longer than the model's context, and its beginning alone is read."""


def check_is_text(text: Any) -> None:
    """Refuse what is no text, such as several; `ArgumentError`."""
    if not isinstance(text, str):
        raise ArgumentError(
            f"a text that is {'None' if text is None else f'a {type(text).__name__}'}",
            expected="one string",
            remedy="record several one by one, or run `opened.model` on a batch inside "
            "`heedful.record`",
        )


def refuse_second(second: str | None, model: str) -> None:
    """Refuse a second text for a `model` that reads one, such as "a GPT"; `ArgumentError`."""
    if second is not None:
        raise ArgumentError(
            "a second text", expected="one text", cause=f"{model}; a BERT reads pairs"
        )


def check_not_empty(tokens: int) -> None:
    """Refuse a text of which no token is left; `TextError`."""
    if not tokens:
        raise TextError(
            "an empty text",
            expected="at least one token",
            cause="nothing in it but white space, or signs that the tokenizer drops",
            remedy="give a text with words",
        )


def check_length(tokens: int, context_length: int | None, cut: bool) -> bool:
    """Whether a text, with what stands around it, fits into the context, which may have no limit.

    If it does not, warns with `TruncationWarning` if the text may be cut, else raises `TextError`.
    """
    if context_length is None or tokens <= context_length:
        return True
    if not cut:
        raise TextError(
            f"a text of {tokens:,} tokens",
            expected=f"at most the model's context of {context_length:,}",
            remedy="give a shorter text, or --cut (in Python cut=True) to read its beginning alone",
        )
    message = f"the text is cut: {context_length:,} of its {tokens:,} tokens are read"
    warnings.warn(message, TruncationWarning, stacklevel=4)  # where `read` is called
    return False


def room_beside(frame: int, context_length: int | None, most: int | None) -> int:
    """How many tokens of a text fit into one context of `most`, beside `frame` around them.

    The default is the model's context, and where that is None more than any text has.

    Raises:
        ArgumentError: more than the model reads, or no room beside the frame.
    """
    longest = sys.maxsize if context_length is None else context_length
    limit = longest if most is None else most
    if limit > longest:
        raise ArgumentError(
            f"contexts of {limit:,} tokens", expected=f"at most {longest:,}, the model's context"
        )
    if limit <= frame:
        raise ArgumentError(
            f"contexts of {limit:,} tokens",
            expected=f"{frame + 1} or more",
            cause=f"{frame} stand around a text" if frame else None,
        )
    return limit - frame
