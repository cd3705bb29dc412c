"""A text that has no tokens, or more than a model reads: refused, or cut where that is asked."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from heedful.errors import ArgumentError, TextError


class CutWarning(UserWarning):
    """A text was longer than the model's context, and its beginning alone is read."""


def check_is_text(text: Any) -> None:
    """Refuse what is no text, such as several.

    Raises:
        ArgumentError: it is none.
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"a text that is {'None' if text is None else f'a {type(text).__name__}'}",
            expected="one string",
            cause="several texts" if isinstance(text, list | tuple) else None,
            remedy="record each, or run `opened.model` on a batch inside `heedful.record`"
            if isinstance(text, list | tuple)
            else None,
        )


def check_not_empty(tokens: int) -> None:
    """Refuse a text of which no token is left.

    Raises:
        TextError: it is empty.
    """
    if not tokens:
        raise TextError(
            "an empty text",
            expected="at least one token",
            cause="nothing in it but white space, or signs that the tokenizer drops",
            remedy="give a text with words",
        )


def must_cut(tokens: int, context_length: int | None, cut: bool, ends: int = 0) -> bool:
    """Whether a text has to be cut, of which a `CutWarning` tells.

    Args:
        tokens: how many it has, with what the tokenizer puts around it.
        context_length: the most that the model reads; none where it has no limit.
        cut: whether the user asked for it.
        ends: how many places of the context the model fills itself.

    Raises:
        TextError: too many, and nobody asked to cut.
    """
    if context_length is None or tokens <= context_length - ends:
        return False
    room, limit = context_length - ends, f"the model's context of {context_length:,}"
    if not cut:
        raise TextError(
            f"a text of {tokens:,} tokens",
            expected=f"at most {room:,}: {limit}, and an end" if ends else f"at most {limit}",
            remedy="give a shorter text, or --cut (in Python cut=True) to read its beginning alone",
        )
    told = f"the text is cut: {room:,} of its {tokens:,} tokens are read"
    warnings.warn(told, CutWarning, stacklevel=4)  # where `read` is called, or `steps`
    return True


def room_beside(frame: int, context_length: int | None, most: int | None) -> int:
    """How many tokens of a text fit into one context; more than any has, where nothing limits it.

    Args:
        frame: tokens that stand around a text in every context.
        context_length: the most that the model reads; none where it has no limit.
        most: the most that the user wants in a context; default what the model reads.

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
