"""Segments of a text, marked by lines in the text, and the tokens of each segment.

A line that starts with the mark ends one segment and begins the next. The rest of the line is the
segment's name; without a name, the segment has its number, from 1. The model does not read these
lines. Segments with the same name are one segment, such as the turns of a chat.

A token belongs to the segment that contains its first character. White space at its start does not
count, because many tokenizers include the space before a word; a token of white space only belongs
to the segment of that white space. Tokens without characters, such as [CLS], are in no segment.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from heedful.errors import ArgumentError, TextError
from heedful.loaded.loaded_model import LoadedModel
from heedful.loaded.truncation import TruncationWarning
from heedful.text.library_tokenizer import Span


class Part(NamedTuple):
    """A segment: its name, and its start and end (exclusive) in the text without marking lines."""

    name: str
    start: int
    end: int


class Marked(NamedTuple):
    """A text without its marking lines, and its segments; a second text is the segment "second".

    >>> Marked.of("@@system\\nBe short.\\n@@question\\nWhere is he?", "@@")
    Marked(text='Be short.\\nWhere is he?', parts=[Part(name='system', start=0, end=10), \
Part(name='question', start=10, end=22)], second=None)
    """

    text: str
    parts: list[Part]
    second: str | None = None

    @classmethod
    def of(cls, text: str, mark: str, second: str | None = None) -> Marked:
        """Split a text at the lines that start with a mark.

        Raises:
            ArgumentError: the mark is empty, or has more than one line.
            TextError: no line of the text starts with the mark.
        """
        if not mark.strip() or len(mark.splitlines()) > 1:
            raise ArgumentError(
                f"the mark {mark!r}", expected="the start of some lines, such as --- or @@"
            )
        rest, parts = _cut(text, mark)
        if rest == text:
            raise TextError(
                f"no line that begins with {mark!r}",
                expected="such a line before each segment, with its name after the mark",
                remedy=f"put {mark}question on a line of its own, and the question below it",
            )
        return cls(rest, parts, second)

    def tokens(self, opened: LoadedModel, *, cut: bool = False) -> dict[str, list[int]]:
        """Return the token indices of each segment, for `recording.segments`.

        Raises:
            RunError: the tokenizer does not report the positions of its tokens.
            TextError: no token begins in a segment.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # `read` has reported it
            spans = opened.spans(self.text, self.second, cut=cut)
        segments: dict[str, list[int]] = {part.name: [] for part in self.parts}
        if self.second is not None:
            segments.setdefault("second", [])
        for token, span in enumerate(spans):
            if span is not None:
                for name in ["second"] if span.text else self._names_at(span):
                    segments[name].append(token)
        empty = next((name for name, tokens in segments.items() if not tokens), None)
        if empty is not None:
            raise TextError(
                f"the segment {empty!r} has no token",
                expected="text below the line that marks it",
                cause="an empty segment, such as one for an answer, or --cut removed its text",
                remedy="remove that line, or write text below it",
            )
        return segments

    def _names_at(self, span: Span) -> list[str]:
        """Return the names of the segments that contain a token's first character: one or none."""
        characters = self.text[span.start : span.end]
        blank = len(characters) - len(characters.lstrip()) if characters.strip() else 0
        first = span.start + blank
        return [part.name for part in self.parts if part.start <= first < part.end]


def _cut(text: str, mark: str) -> tuple[str, list[Part]]:
    """Return the text without marking lines, and its segments; blank text at the start is none."""
    lines, parts, length = [], [Part("", 0, 0)], 0
    for line in text.splitlines(keepends=True):
        name = _name(line, mark)
        if name is not None:
            parts.append(Part(name, length, length))
            continue
        lines.append(line)
        length += len(line)
        parts[-1] = parts[-1]._replace(end=length)
    rest = "".join(lines)
    if not rest[: parts[0].end].strip():
        parts = parts[1:]
    named = enumerate(parts, 1)
    return rest, [part._replace(name=part.name or str(number)) for number, part in named]


def _name(line: str, mark: str) -> str | None:
    """Return the name on a marking line; None for others, such as ----- for the mark ---."""
    if not line.startswith(mark):
        return None
    after = line[len(mark) :].rstrip("\r\n")
    is_mark = not after or after[0].isspace() or after[0].isalnum()
    return after.strip() if is_mark else None
