"""Segments as they are given, by tokens or by a text that occurs, as a boolean for each token.

Of tokens only the labels are known (`·` for a space, `##` within a word), so a text is found by its
letters, without white space, the signs that tokenizers write for it, and #; where it occurs nowhere
so, also without capitals and accents. A token is in the segment if the first of its letters is in
the text; one of white space alone, if it stands between two that are.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import Index, indices
from heedful.recording.checks import is_whole
from heedful.token_names import SIGNS, SPACES

Told: TypeAlias = "Mapping[str, Index | range | str]"
REST, LEARNED = "rest", "learned sink"  # what is in no segment; what no key gets
SPELLED = re.compile(r"<([0-9a-f]{2})>")  # a byte that is only part of a character
NO_LETTER = re.compile(rf"[\s#◌{SPACES}{''.join(SIGNS.values())}]")
HERE = 60  # letters of a text that an error repeats


def marked(segments: Told, tokens: int, labels: Sequence[str] | None) -> dict[str, Tensor]:
    """For each segment which of the tokens are in it, boolean (T,); they may overlap.

    A segment is a slice, a range, a list of indices, a boolean for each token, or a text that
    occurs in the labels of the tokens; an ArgumentError says what is none.

    >>> marked({"a": slice(0, 2), "b": "cat sat"}, 4, ["The", "·cat", "·sat", "."])
    {'a': tensor([ True,  True, False, False]), 'b': tensor([False,  True,  True, False])}
    """
    if not isinstance(segments, Mapping) or not all(isinstance(name, str) for name in segments):
        raise ArgumentError(
            f"segments {reprlib.repr(segments)}",
            expected="names with their tokens",
            remedy='{"system": slice(0, 40), "question": "Where is the cat?"}',
        )
    return {name: _mark(name, where, tokens, labels) for name, where in segments.items()}


def _mark(name: str, where: Any, tokens: int, labels: Sequence[str] | None) -> Tensor:
    if name in (REST, LEARNED) or not name:
        raise ArgumentError(
            f"a segment named {name!r}",
            expected=f"another name: {REST!r} is what is in no segment, {LEARNED!r} what no key "
            "gets",
        )
    if isinstance(where, str):
        where = _occurrence(name, where, labels)
    try:
        places = indices(_index(where), tokens, "token")
    except ArgumentError as error:
        raise ArgumentError(f"the segment {name!r}: {error}") from error
    if not len(places):
        raise ArgumentError(
            f"the segment {name!r} without a token",
            expected=f"one or more of the {tokens:,} tokens",
            cause="it begins past the end, or ends where it begins or before: "
            f"{reprlib.repr(where)}",
        )
    mark = torch.zeros(tokens, dtype=torch.bool, device="cpu")
    mark[places] = True
    return mark


def _index(where: Any) -> Index:
    if isinstance(where, slice | Tensor):
        return where
    try:
        return torch.as_tensor([where] if is_whole(where) else list(where), device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"token indices {reprlib.repr(where)}",
            expected="a slice, a range, a list of indices, or a text that occurs",
        ) from error


def _occurrence(name: str, text: str, labels: Sequence[str] | None) -> slice:
    """The tokens of a text that occurs once."""
    remedy = f'tell its tokens by their numbers: {{"{name}": slice(0, 40)}}'
    if labels is None:
        raise ArgumentError(
            f"a text for the segment {name!r}",
            expected="a recording whose tokens have names",
            remedy=f"record(model, tokenizer=…), or {remedy}",
        )
    for plainly in (True, False):
        letters, wanted = [_letters(label, plainly) for label in labels], _letters(text, plainly)
        overlapping = re.finditer(b"(?=" + re.escape(wanted) + b")", b"".join(letters))
        if at := [match.start() for match in overlapping if wanted]:
            break
    short = repr(text if len(text) <= HERE else text[:HERE] + "…")
    starts = [0, *accumulate(map(len, letters))]
    if len(at) > 1:
        first = [bisect_right(starts, place) - 1 for place in at]
        raise ArgumentError(
            f"{short} occurs {len(at)} times, at the tokens {reprlib.repr(first)}",
            expected=f"a text that occurs once, for the segment {name!r}",
            remedy=f"give more of it, or {remedy}",
        )
    if not at:
        raise ArgumentError(
            f"{short} occurs nowhere among the tokens",
            expected=f"a text that the model has read, for the segment {name!r}",
            cause="another spelling, or words that the tokenizer does not know",
            remedy=remedy,
        )
    begin, end = at[0], at[0] + len(wanted)
    within = [i for i, label in enumerate(letters) if label and begin <= starts[i] < end]
    if not within:
        raise ArgumentError(
            f"{short} lies inside one token",
            expected=f"a text in which a token begins, for the segment {name!r}",
            remedy=f"give the whole word, or {remedy}",
        )
    return slice(within[0], within[-1] + 1)


def _letters(text: str, plainly: bool) -> bytes:
    """What counts of a text or a label, in UTF-8; not `plainly`, without capitals and accents."""
    if not plainly:
        parts = unicodedata.normalize("NFD", text.casefold())
        text = "".join(char for char in parts if not unicodedata.combining(char))
    pieces = SPELLED.split(NO_LETTER.sub("", text))  # every other one is a byte
    return b"".join(
        bytes([int(piece, 16)]) if i % 2 else piece.encode("utf-8", "surrogatepass")
        for i, piece in enumerate(pieces)
    )
