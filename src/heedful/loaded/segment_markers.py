"""Segments of a text, marked by lines in the text, and the tokens of each segment.

A line that starts with the mark, such as @@, begins a segment and ends the previous one. The rest
of the line is the segment's name; a segment without a name is named by its number, from 1. The
model does not read such lines. Segments with the same name, like turns in a chat, are one segment.

A token belongs to the segment of its first character that is not white space, because many
tokenizers include the space before a word. A token of white space belongs to the segment of its
first character. A token without characters, such as [CLS], belongs to no segment.
"""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

from heedful.errors import ArgumentError, TextError
from heedful.loaded.loaded_model import LoadedModel
from heedful.loaded.truncation import TruncationWarning
from heedful.text.library_tokenizer import Span


class Part(NamedTuple):
    """A segment: its name, and its start and end (exclusive) in the characters of `Marked.text`."""

    name: str
    start: int
    end: int


class Marked(NamedTuple):
    """A text without marking lines, and its segments; a second text is the segment "second".

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
                f"the mark {mark!r}", expected="characters that begin a line, such as --- or @@"
            )
        remaining, parts = _cut(text, mark)
        if remaining == text:
            raise TextError(
                f"no line that begins with {mark!r}",
                expected="a line with the mark and a name before each segment",
                remedy=f"write the line {mark}question, and the question below it",
            )
        return cls(remaining, parts, second)

    def tokens(self, opened: LoadedModel, *, cut: bool = False) -> dict[str, list[int]]:
        """Return the token indices of each segment, an argument of `recording.segments`.

        Args:
            opened: the model that reads the text.
            cut: whether the text is truncated to the model's context, as in `opened.read`.

        Raises:
            RunError: the tokenizer does not report the positions of its tokens.
            TextError: a segment has no token; or as in `opened.read`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # already issued by `read`
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
                cause="the segment is empty, or --cut removed its text",
                remedy="remove that line, or write text below it",
            )
        return segments

    def _names_at(self, span: Span) -> list[str]:
        """Return a list with the name of the token's segment; empty if it is in no segment."""
        characters = self.text[span.start : span.end]
        blank = len(characters) - len(characters.lstrip()) if characters.strip() else 0
        first = span.start + blank
        return [part.name for part in self.parts if part.start <= first < part.end]


def _cut(text: str, mark: str) -> tuple[str, list[Part]]:
    """Return the text without marking lines, and its segments.

    Text before the first marking line is a segment too, unless it is blank.
    """
    lines, parts, length = [], [Part("", 0, 0)], 0
    for line in io.StringIO(text, newline=""):  # str.splitlines also cuts at U+2028, form feed, …
        name = _name(line, mark)
        if name is not None:
            parts.append(Part(name, length, length))
            continue
        lines.append(line)
        length += len(line)
        parts[-1] = parts[-1]._replace(end=length)
    remaining = "".join(lines)
    if not remaining[: parts[0].end].strip():
        parts = parts[1:]
    named = enumerate(parts, 1)
    return remaining, [part._replace(name=part.name or str(number)) for number, part in named]


def _name(line: str, mark: str) -> str | None:
    """Return the name on a marking line; None for another line, such as ----- for the mark ---."""
    if not line.startswith(mark):
        return None
    suffix = line[len(mark) :].rstrip("\r\n")
    is_mark = not suffix or suffix[0].isspace() or suffix[0].isalnum()
    return suffix.strip() if is_mark else None
