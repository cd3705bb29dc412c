"""What a model reads of a text that is watched.

It knows no recorder, so that the text is refused, if it is, before anything is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from heedful.errors import ArgumentError
from heedful.models import BertConfig, GPTConfig
from heedful.text import Tokenizer


class WatchedText(NamedTuple):
    """The ids of a text, for a BERT the segments too, and how many tokens are left out."""

    ids: list[int]
    segments: list[int] | None
    left_out: int


def watched_text(config: GPTConfig | BertConfig, tokenizer: Tokenizer, text: str) -> WatchedText:
    """What a model of a configuration reads of a text: as much as its context holds.

    Raises:
        ArgumentError: a text of fewer than two tokens.
        TextError: a character that the tokenizer does not know.
    """
    most, of_bert = config.context_length, isinstance(config, BertConfig)
    if of_bert:
        bert: Any = tokenizer
        framed, whole = bert.inputs(text, most=most), len(bert.inputs(text).ids)
        ids, segments = framed.ids, framed.segments
    else:
        ids, segments = [*tokenizer.first, *tokenizer.encode(text)], None
        whole, ids = len(ids), ids[:most]
    if whole < 2:
        raise ArgumentError(
            "a text to watch of a single token",
            expected="at least two",
            remedy="give a longer one to --watch",
        )
    return WatchedText(ids, segments, whole - len(ids))
