"""What a page may choose from: named recordings, their texts, and the calls of each.

A recording is finished, or its one text is still being written, and then has calls for each number
of tokens that it has had.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.errors import ArgumentError
from heedful.recording import Call, Recording
from heedful.recording.head_scores import Even
from heedful.recording.segment_masks import Told
from heedful.views.explorer.request import Where
from heedful.views.explorer.text import Text, texts_of

if TYPE_CHECKING:
    from heedful.views.explorer.continuation import GrowingText

NAMED = 40  # characters of a text by which it is called
SIZES = 4  # of each text that grows, whose calls are kept: a page asks for the newest ones

Chosen = tuple[list[int] | None, list[int] | None]  # layers and heads, the model's numbers


class Moment(NamedTuple):
    """A recording of a model in training: its number, after how many steps, the losses then.

    `training` is the mean training loss, `validation` the latest validation loss, of the step
    `validated`, in nats per token; None where there is none yet.
    """

    recording: int
    step: int
    training: float | None
    validation: float | None
    validated: int | None


class _Finished:
    """The texts of a recording."""

    def __init__(self, recording: Recording, chosen: Chosen) -> None:
        self.source = recording
        self.texts = [text.of(*chosen) for text in texts_of(recording)]

    def text(self, number: int, tokens: int | None) -> Text:
        if tokens is not None:
            raise ArgumentError("a recording that is finished", expected="one whose text grows")
        return self.texts[_place("text", number, len(self.texts))]

    def about(self) -> list[dict[str, Any]]:
        return [text.about() for text in self.texts]


class _Growing:
    """The one text of a recording that is being written, with each number of tokens."""

    def __init__(self, source: GrowingText, chosen: Chosen) -> None:
        self.source = source
        self._at = lru_cache(SIZES)(lambda tokens: source.at(tokens).of(*chosen))
        self._at(source.tokens)  # or it raises before it is there

    def text(self, number: int, tokens: int | None) -> Text:
        _place("text", number, 1)
        if tokens is None:  # without it no answer is the same for good
            raise ArgumentError("a text that grows", expected="with a number of tokens")
        return self._at(tokens)

    def about(self) -> list[dict[str, Any]]:
        size = self.source.tokens
        return [{**self._at(size).about(), "tokens": size}]


class Texts:
    """All texts of named recordings, each found by the number of its recording and its own."""

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        layers: list[int] | None = None,
        heads: list[int] | None = None,
        segments: Told | None = None,
    ) -> None:
        """Of these layers and heads, the model's numbers; default all.

        `segments` are marked in each text, as `recording.segments` is told them.

        Raises:
            ArgumentError: a layer or head that there is not, or a segment.
        """
        self._chosen = layers, heads
        self.moments: list[Moment] = []  # where the recordings are of one text, as a model learns
        self._of: dict[str, _Finished | _Growing] = {}
        for name, recording in recordings.items():
            found = self.add(name, recording)
            if segments:
                _mark(found, segments)

    def add(self, name: str, recording: Recording) -> list[Text]:
        """One more recording, whose texts come back; a name that is taken gets a number."""
        found = _Finished(recording, self._chosen)
        self._of[self._free(name)] = found
        return found.texts

    def grow(self, name: str, text: GrowingText) -> int:
        """One more recording, of a text that is being written; its number."""
        self._of[self._free(name)] = _Growing(text, self._chosen)
        return len(self._of) - 1

    def _free(self, name: str) -> str:
        names = (name if n == 1 else f"{name} ({n})" for n in count(1))
        return next(each for each in names if each not in self._of)

    @property
    def names(self) -> list[str]:
        """The name of each recording."""
        return list(self._of)

    def about(self) -> list[dict[str, Any]]:
        """Each recording with its texts and calls; how many tokens one has that may grow."""
        return [
            {"name": name, "missed": of.source.missed, "texts": of.about()}
            for name, of in self._of.items()
        ]

    def calls(self) -> list[tuple[Where, Call]]:
        """Every call of what is finished, with its numbers."""
        return [
            ((r, t, c), call)
            for r, of in enumerate(self._of.values())
            if isinstance(of, _Finished)
            for t, text in enumerate(of.texts)
            for c, call in enumerate(text.calls)
        ]

    def whole(self, recording: int, tokens: int) -> Recording:
        """The recording of a text that grows, with so many tokens.

        Raises:
            ArgumentError: there is none of these numbers.
        """
        of = self._recording(recording)
        if isinstance(of, _Finished):
            raise ArgumentError(f"recording {recording}", expected="one whose text grows")
        return of.source.recording(tokens)

    def call(self, recording: int, text: int, call: int, tokens: int | None = None) -> Call:
        """One call; of a text that grows, with so many tokens.

        Raises:
            ArgumentError: there is none of these numbers.
        """
        calls = self._text(recording, text, tokens).calls
        return calls[_place("call", call, len(calls))]

    def scored(
        self, recording: int, text: int, call: int, tokens: int | None = None
    ) -> tuple[Call, Even]:
        """One call as its heads are scored, and what its text's calls share; errors as `call`."""
        of = self._text(recording, text, tokens)
        return of.scored[_place("call", call, len(of.calls))], of.even

    def _text(self, recording: int, text: int, tokens: int | None) -> Text:
        return self._recording(recording).text(text, tokens)

    def _recording(self, number: int) -> _Finished | _Growing:
        return list(self._of.values())[_place("recording", number, len(self._of))]


def named(where: Where) -> str:
    """A call as the page names it."""
    return ".".join(map(str, where))


def short(text: str) -> str:
    """What a text is called: its beginning, in one line."""
    found = " ".join(text.split())
    return found if len(found) <= NAMED else found[: NAMED - 1] + "…"


def _place(what: str, at: int, size: int) -> int:
    if not 0 <= at < size:
        raise ArgumentError(f"{what} {at}", expected=f"0 to {size - 1}" if size else "none")
    return at


def _mark(texts: list[Text], segments: Told) -> None:
    """Mark them in each text that has such tokens.

    Raises:
        ArgumentError: none has.
    """
    wrong = []
    for text in texts:
        try:
            text.mark(segments)
        except ArgumentError as error:
            wrong.append(error)
    if len(wrong) == len(texts) and wrong:
        raise wrong[0]
