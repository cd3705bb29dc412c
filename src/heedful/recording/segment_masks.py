"""Conversion of segments, passed as token indices or as a text, to a boolean mask of the tokens.

A text is searched in the labels of the tokens, in which `·` is a space and `##` continues a word.
So white space, the signs for it and # are ignored; if nothing matches, case and accents are ignored
too. A token belongs to the segment if the token's first letter is in the match. A token of white
space belongs to the segment if it lies between two tokens of the segment.
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
from heedful.recording.checks import is_integer
from heedful.token_names import SIGNS, SPACES

SegmentSpecs: TypeAlias = "Mapping[str, Index | range | str]"
REST, LEARNED = "rest", "learned sink"  # names for tokens in no segment, and for weight on no key
BYTE_LABEL = re.compile(r"<([0-9a-f]{2})>")  # the label of a byte that is a part of a character
NO_LETTER = re.compile(rf"[\s#◌{SPACES}{''.join(SIGNS.values())}]")
QUOTED = 60  # the maximum number of letters of a text that an error message quotes


def token_masks(
    segments: SegmentSpecs, tokens: int, labels: Sequence[str] | None
) -> dict[str, Tensor]:
    """Return a boolean mask (T,) of the tokens of each segment. Segments may overlap.

    A segment is a slice, a range, a list of indices, a boolean for each token, or a text that
    occurs once in the labels of the tokens. Anything else raises an ArgumentError.

    >>> token_masks({"a": slice(0, 2), "b": "cat sat"}, 4, ["The", "·cat", "·sat", "."])
    {'a': tensor([ True,  True, False, False]), 'b': tensor([False,  True,  True, False])}
    """
    if not isinstance(segments, Mapping) or not all(isinstance(name, str) for name in segments):
        raise ArgumentError(
            f"segments {reprlib.repr(segments)}",
            expected="a dictionary from names to tokens",
            remedy='{"system": slice(0, 40), "question": "Where is the cat?"}',
        )
    return {name: _mask(name, spec, tokens, labels) for name, spec in segments.items()}


def _mask(name: str, spec: Any, tokens: int, labels: Sequence[str] | None) -> Tensor:
    if name in (REST, LEARNED) or not name:
        raise ArgumentError(
            f"a segment named {name!r}",
            expected=f"another name: {REST!r} is all other tokens, {LEARNED!r} weight on no key",
        )
    if isinstance(spec, str):
        spec = _occurrence(name, spec, labels)
    try:
        selected = indices(_index(spec), tokens, "token")
    except ArgumentError as error:
        raise ArgumentError(f"the segment {name!r}: {error}") from error
    if not len(selected):
        raise ArgumentError(
            f"the segment {name!r} without a token",
            expected=f"one or more of the {tokens:,} tokens",
            cause=f"a start past the end, or an end at or before the start: {reprlib.repr(spec)}",
        )
    mask = torch.zeros(tokens, dtype=torch.bool, device="cpu")
    mask[selected] = True
    return mask


def _index(spec: Any) -> Index:
    if isinstance(spec, slice | Tensor):
        return spec
    try:
        return torch.as_tensor([spec] if is_integer(spec) else list(spec), device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"token indices {reprlib.repr(spec)}",
            expected="a slice, a range, a list of indices, or a text",
        ) from error


def _occurrence(name: str, text: str, labels: Sequence[str] | None) -> slice:
    """Return the token indices of a text; raise an ArgumentError unless it occurs once."""
    remedy = f'pass the indices of its tokens: {{"{name}": slice(0, 40)}}'
    if labels is None:
        raise ArgumentError(
            f"a text for the segment {name!r}",
            expected="a recording whose tokens have names",
            remedy=f"record(model, tokenizer=…), or {remedy}",
        )
    for is_exact in (True, False):
        letters, pattern = [_letters(label, is_exact) for label in labels], _letters(text, is_exact)
        overlapping = re.finditer(b"(?=" + re.escape(pattern) + b")", b"".join(letters))
        if matches := [match.start() for match in overlapping if pattern]:
            break
    short = repr(text if len(text) <= QUOTED else text[:QUOTED] + "…")
    starts = [0, *accumulate(map(len, letters))]
    if len(matches) > 1:
        first = [bisect_right(starts, start) - 1 for start in matches]
        raise ArgumentError(
            f"{short} occurs {len(matches)} times, at the tokens {reprlib.repr(first)}",
            expected=f"a text that occurs once, for the segment {name!r}",
            remedy=f"pass a longer text, or {remedy}",
        )
    if not matches:
        raise ArgumentError(
            f"{short} occurs nowhere among the tokens",
            expected=f"a part of the model's text, for the segment {name!r}",
            cause="another spelling, or words that are unknown to the tokenizer",
            remedy=remedy,
        )
    begin, end = matches[0], matches[0] + len(pattern)
    within = [i for i, label in enumerate(letters) if label and begin <= starts[i] < end]
    if not within:
        raise ArgumentError(
            f"{short} lies inside one token",
            expected=f"a text that contains the start of a token, for the segment {name!r}",
            remedy=f"pass the full word, or {remedy}",
        )
    return slice(within[0], within[-1] + 1)


def _letters(text: str, is_exact: bool) -> bytes:
    """Return the letters of a text or a label in UTF-8; unless exact, without case and accents."""
    if not is_exact:
        parts = unicodedata.normalize("NFD", text.casefold())
        text = "".join(char for char in parts if not unicodedata.combining(char))
    pieces = BYTE_LABEL.split(NO_LETTER.sub("", text))  # pieces at odd indices are bytes, in hex
    return b"".join(
        bytes([int(piece, 16)]) if i % 2 else piece.encode("utf-8", "surrogatepass")
        for i, piece in enumerate(pieces)
    )
