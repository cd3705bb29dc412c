"""A text in which lines mark where segments begin, and which tokens of it are in which.

A line that begins with the mark ends one segment and begins the next. What stands after the mark is
the segment's name; without one it is its number, from 1. The model does not read these lines.
Segments of one name are one, as the turns of a chat.

A token belongs to the segment in which it begins: the first of its characters that is no white
space, for many tokenizers put the space before a word into its token. One of white space alone
belongs to where its first character stands. What stands for no character, such as [CLS], is in none.
"""  # noqa: E501

from __future__ import annotations

import warnings
from typing import NamedTuple

from heedful.errors import ArgumentError, TextError
from heedful.loaded.loaded_model import LoadedModel
from heedful.loaded.truncation import TruncationWarning
from heedful.text.library_tokenizer import Span


class Part(NamedTuple):
    """A segment's name, and its characters in the text that is left, the end not included."""

    name: str
    start: int
    end: int


class Marked(NamedTuple):
    """What the model reads of a text, and its segments; a second text is one, "second".

    >>> Marked.of("@@system\\nBe short.\\n@@question\\nWhere is he?", "@@")
    Marked(text='Be short.\\nWhere is he?', parts=[Part(name='system', start=0, end=10), \
Part(name='question', start=10, end=22)], second=None)
    """

    text: str
    parts: list[Part]
    second: str | None = None

    @classmethod
    def of(cls, text: str, mark: str, second: str | None = None) -> Marked:
        """A text cut at its marks.

        Raises:
            ArgumentError: a mark that is empty, or of more than one line.
            TextError: no line of the text begins with the mark.
        """
        if not mark.strip() or len(mark.splitlines()) > 1:
            raise ArgumentError(
                f"the mark {mark!r}", expected="what some lines begin with, such as --- or @@"
            )
        rest, parts = _cut(text, mark)
        if rest == text:
            raise TextError(
                f"no line that begins with {mark!r}",
                expected="one where each segment begins, with its name after the mark",
                remedy=f"{mark}question on a line of its own, and the question below it",
            )
        return cls(rest, parts, second)

    def tokens(self, opened: LoadedModel, *, cut: bool = False) -> dict[str, list[int]]:
        """The tokens of each segment, as `recording.segments` takes them, cut as they are read.

        Raises:
            RunError: a tokenizer that does not report where its tokens stand.
            TextError: a segment in which no token begins.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # reading them has reported it
            spans = opened.spans(self.text, self.second, cut=cut)
        found: dict[str, list[int]] = {part.name: [] for part in self.parts}
        if self.second is not None:
            found.setdefault("second", [])
        for token, span in enumerate(spans):
            if span is not None:
                for name in ["second"] if span.text else self._names_at(span):
                    found[name].append(token)
        empty = next((name for name, its in found.items() if not its), None)
        if empty is not None:
            raise TextError(
                f"the segment {empty!r} has no token",
                expected="text below the line that marks it",
                cause="it is left for an answer, or --cut left its text out",
                remedy="take that line out, or write below it",
            )
        return found

    def _names_at(self, span: Span) -> list[str]:
        """The segment, or none, in which the first character of a token stands."""
        characters = self.text[span.start : span.end]
        blank = len(characters) - len(characters.lstrip()) if characters.strip() else 0
        first = span.start + blank
        return [part.name for part in self.parts if part.start <= first < part.end]


def _cut(text: str, mark: str) -> tuple[str, list[Part]]:
    """The text without its marks, and its segments; blank text before the first is none."""
    kept, parts, length = [], [Part("", 0, 0)], 0
    for line in text.splitlines(keepends=True):
        name = _name(line, mark)
        if name is not None:
            parts.append(Part(name, length, length))
            continue
        kept.append(line)
        length += len(line)
        parts[-1] = parts[-1]._replace(end=length)
    rest = "".join(kept)
    if not rest[: parts[0].end].strip():
        parts = parts[1:]
    named = enumerate(parts, 1)
    return rest, [part._replace(name=part.name or str(number)) for number, part in named]


def _name(line: str, mark: str) -> str | None:
    """What stands after the mark, which a word or a space follows; None for a line without it."""
    if not line.startswith(mark):
        return None
    after = line[len(mark) :].rstrip("\r\n")
    is_one = not after or after[0].isspace() or after[0].isalnum()
    return after.strip() if is_one else None
