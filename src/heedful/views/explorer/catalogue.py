"""The catalogue of a page: named recordings, their texts, and the calls of each text.

A recording is complete, or its one text is still being generated. Such a live text has a separate
list of calls for each number of tokens so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.errors import ArgumentError
from heedful.recording import Call, Recording
from heedful.recording.head_scores import ChanceScores
from heedful.recording.segment_masks import SegmentSpecs
from heedful.views.explorer.request import Indices
from heedful.views.explorer.text import Text, texts_of

if TYPE_CHECKING:
    from heedful.views.explorer.continuation import LiveText

TITLE = 40  # characters of a text that are its title
SIZES = 4  # of a live text whose calls are cached: a page requests the newest

Selection = tuple[list[int] | None, list[int] | None]  # layers and heads, the model's numbers


class TrainingStep(NamedTuple):
    """A recording of a model in training: its index, the number of steps so far, and the losses.

    `training` is the mean training loss, `validation` the latest validation loss, computed at step
    `validated`; both in nats per token, and None before the first one.
    """

    recording: int
    step: int
    training: float | None
    validation: float | None
    validated: int | None


class _Complete:
    """The texts of a complete recording."""

    def __init__(self, recording: Recording, selection: Selection) -> None:
        self.source = recording
        self.texts = [text.select(*selection) for text in texts_of(recording)]

    def text(self, number: int, tokens: int | None) -> Text:
        if tokens is not None:
            raise ArgumentError("four indices", expected="three, recording.text.call")
        return self.texts[_checked("text", number, len(self.texts))]

    def about(self) -> list[dict[str, Any]]:
        return [text.about() for text in self.texts]


class _Live:
    """A text that is being generated; its calls for any number of tokens so far."""

    def __init__(self, source: LiveText, selection: Selection) -> None:
        self.source = source
        self._text = lru_cache(SIZES)(lambda tokens: source.text(tokens).select(*selection))
        self._text(source.tokens)  # raise now if the selection does not fit

    def text(self, number: int, tokens: int | None) -> Text:
        _checked("text", number, 1)
        if tokens is None:  # the response would change with each new token
            raise ArgumentError("three indices", expected="four, recording.text.call.tokens")
        return self._text(tokens)

    def about(self) -> list[dict[str, Any]]:
        size = self.source.tokens
        return [{**self._text(size).about(), "tokens": size}]


class Catalogue:
    """All texts of named recordings; a call is identified by its indices, see `Indices`."""

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        layers: list[int] | None = None,
        heads: list[int] | None = None,
        segments: SegmentSpecs | None = None,
    ) -> None:
        """Select layers and heads, by the model's numbers; mark segments in the texts they fit.

        `segments` has the form of `recording.segments`.

        Raises:
            ArgumentError: a layer or head that was not recorded, or a segment that fits no text.
        """
        self._selection = layers, heads
        self.moments: list[TrainingStep] = []  # if the recordings are steps of a training run
        self._sources: dict[str, _Complete | _Live] = {}
        for name, recording in recordings.items():
            texts = self.add(name, recording)
            if segments:
                _mark(texts, segments)

    def add(self, name: str, recording: Recording) -> list[Text]:
        """Add a recording and return its texts; a name in use gets a number appended."""
        source = _Complete(recording, self._selection)
        self._sources[self._unused(name)] = source
        return source.texts

    def add_live(self, name: str, text: LiveText) -> int:
        """Add a text that is being generated; return the index of its recording."""
        self._sources[self._unused(name)] = _Live(text, self._selection)
        return len(self._sources) - 1

    def _unused(self, name: str) -> str:
        names = (name if n == 1 else f"{name} ({n})" for n in count(1))
        return next(candidate for candidate in names if candidate not in self._sources)

    @property
    def names(self) -> list[str]:
        """The name of each recording."""
        return list(self._sources)

    def about(self) -> list[dict[str, Any]]:
        """Return the description of each recording; a live text has its number of tokens."""
        return [
            {"name": name, "missed": source.source.missed, "texts": source.about()}
            for name, source in self._sources.items()
        ]

    def calls(self) -> list[tuple[Indices, Call]]:
        """Return every call of complete recordings, with its indices."""
        return [
            ((r, t, c), call)
            for r, source in enumerate(self._sources.values())
            if isinstance(source, _Complete)
            for t, text in enumerate(source.texts)
            for c, call in enumerate(text.calls)
        ]

    def recording(self, number: int, tokens: int) -> Recording:
        """Return the first tokens of a live text as a recording.

        Raises:
            ArgumentError: an index out of range, or a complete recording.
        """
        source = self._source(number)
        if isinstance(source, _Complete):
            raise ArgumentError(f"complete recording {number}", expected="a text being generated")
        return source.source.recording(tokens)

    def call(self, recording: int, text: int, call: int, tokens: int | None = None) -> Call:
        """Return a call by its indices; `tokens` is for a live text only.

        Raises:
            ArgumentError: an index out of range.
        """
        calls = self._text(recording, text, tokens).calls
        return calls[_checked("call", call, len(calls))]

    def scored(
        self, recording: int, text: int, call: int, tokens: int | None = None
    ) -> tuple[Call, ChanceScores]:
        """Return a call for scoring heads, and the cache of its text; raises as `call`."""
        source = self._text(recording, text, tokens)
        return source.scored[_checked("call", call, len(source.calls))], source.chance_scores

    def _text(self, recording: int, text: int, tokens: int | None) -> Text:
        return self._source(recording).text(text, tokens)

    def _source(self, number: int) -> _Complete | _Live:
        return list(self._sources.values())[_checked("recording", number, len(self._sources))]


def call_id(indices: Indices) -> str:
    """Return the identifier of a call in the page, such as "0.0.3"."""
    return ".".join(map(str, indices))


def title_of(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= TITLE else line[: TITLE - 1] + "…"


def _checked(kind: str, index: int, size: int) -> int:
    if not 0 <= index < size:
        raise ArgumentError(f"{kind} {index}", expected=f"0 to {size - 1}" if size else "none")
    return index


def _mark(texts: list[Text], segments: SegmentSpecs) -> None:
    """Mark the segments in each text that they fit.

    Raises:
        ArgumentError: they fit no text.
    """
    errors = []
    for text in texts:
        try:
            text.mark(segments)
        except ArgumentError as error:
            errors.append(error)
    if len(errors) == len(texts) and errors:
        raise errors[0]
