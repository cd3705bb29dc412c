"""The catalogue of a page: named recordings, their texts, and the calls of each text.

A recording is complete, or has a single live text, that is, a text that a model generates in the
page. A live text has a list of calls for each length that it has had so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heedful.errors import ArgumentError
from heedful.files import read_json
from heedful.ops.indexing import check_index
from heedful.recording import Call, Recording
from heedful.recording.head_scores import ChanceScores
from heedful.recording.segment_masks import SegmentSpecs
from heedful.views.explorer.request import Indices
from heedful.views.explorer.text import Text, texts_of

if TYPE_CHECKING:
    from heedful.views.explorer.continuation import LiveText

TITLE_LENGTH = 40  # characters
SHARED = 3  # words that two titles may share at their beginning
CACHED_LENGTHS = 4  # cached lists of calls per live text: a page requests the newest

Selection = tuple[list[int] | None, list[int] | None]  # numbers of layers, and of heads; None: all


class TrainingStep(NamedTuple):
    """A recording made during training: its index, the number of steps before it, and the losses.

    `training` is the latest mean training loss. `validation` is the latest validation loss, of the
    step `validated`. A loss is in nats per token, or None if none was computed before.
    """

    recording: int
    step: int
    training: float | None
    validation: float | None
    validated: int | None


class _Complete:
    """The texts of a complete recording."""

    def __init__(self, recording: Recording, selection: Selection, typed: list[str] | None) -> None:
        self.source, self.typed = recording, typed
        self.texts = [text.select(*selection) for text in texts_of(recording)]

    def text(self, index: int, tokens: int | None) -> Text:
        if tokens is not None:
            raise ArgumentError("four indices", expected="three, recording.text.call")
        return self.texts[check_index("text", index, len(self.texts))]

    def about(self) -> list[dict[str, Any]]:
        return [text.about() for text in self.texts]


class _Live:
    """A live text, with its calls for any length that it has had so far."""

    typed = None

    def __init__(self, source: LiveText, selection: Selection) -> None:
        self.source = source
        self._text = lru_cache(CACHED_LENGTHS)(lambda size: source.text(size).select(*selection))
        self._text(source.growing.tokens)  # raise now if a layer or head does not exist

    def text(self, index: int, tokens: int | None) -> Text:
        check_index("text", index, 1)
        if tokens is None:  # the response would change with each new token
            raise ArgumentError("three indices", expected="four, recording.text.call.tokens")
        return self._text(tokens)

    def about(self) -> list[dict[str, Any]]:
        size = self.source.growing.tokens
        return [{**self._text(size).about(), "tokens": size}]


class Catalogue:
    """All texts of named recordings. `request.Indices` identifies a call."""

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        layers: list[int] | None = None,
        heads: list[int] | None = None,
        segments: SegmentSpecs | None = None,
        typed: list[str] | None = None,
    ) -> None:
        """Select layers and heads of the recordings; mark `segments` in each text that they fit.

        `layers` and `heads` are numbers in the model, default all. `segments` has the form that
        `Sequence.segments` takes. `typed` is the text of all recordings, if it is known.

        Raises:
            ArgumentError: unrecorded layers or heads, or segments that fit no text of a recording.
        """
        self._selection = layers, heads
        self.training_steps: list[TrainingStep] = []  # for the recordings of a training run
        self.ablation: Any = None  # a file of `heedful ablate --out`
        self._sources: dict[str, _Complete | _Live] = {}
        for name, recording in recordings.items():
            texts = self.add(name, recording, typed)
            if segments:
                _mark(texts, segments)

    def add(self, name: str, recording: Recording, typed: list[str] | None = None) -> list[Text]:
        """Add a recording, of `typed` if that is known, and return its texts.

        If the name is in use, a number is appended to it.
        """
        source = _Complete(recording, self._selection, typed)
        self._sources[self._unused(name)] = source
        return source.texts

    def add_live(self, name: str, text: LiveText) -> int:
        """Add a text that is being generated; return the index of its recording."""
        self._sources[self._unused(name)] = _Live(text, self._selection)
        return len(self._sources) - 1

    def add_ablation(self, path: Path) -> None:
        """Show what a file of `heedful ablate` measured for each head; refuse any other file."""
        self.ablation = read_json(path)
        known = {(call.name, head) for _, call in self.calls() for head in call.heads}
        try:
            heads = [(part["module"], part["head"]) for part in self.ablation["heads"]]
        except (KeyError, TypeError):
            expected = "a file of `heedful ablate --out`"
            raise ArgumentError(f"{path}, which is not an ablation", expected=expected) from None
        # the name of a module is longer in a model with its output layer
        fits = [any(f".{m}".endswith(f".{k}") and h == i for k, i in known) for m, h in heads]
        if sum(fits) < min(len(heads), len(known)):
            unknown = "head {1} of {0}".format(*heads[fits.index(False)])
            raise ArgumentError(f"{path} with {unknown}", expected="heads of the recorded model")

    def title_of(self, texts: list[str]) -> str:
        """Return a title that tells texts from those of the latest recording of typed texts."""
        typed = [source.typed for source in self._sources.values() if source.typed]
        return title_of(texts, typed[-1] if typed else None)

    def _unused(self, name: str) -> str:
        names = (name if n == 1 else f"{name} ({n})" for n in itertools.count(1))
        return next(candidate for candidate in names if candidate not in self._sources)

    @property
    def names(self) -> list[str]:
        """The name of each recording."""
        return list(self._sources)

    def about(self) -> list[dict[str, Any]]:
        """Return the description of each recording, with the number of tokens of a live text."""
        return [
            {
                "name": name,
                "missed": source.source.missed,
                "texts": source.about(),
                "typed": source.typed or [],
            }
            for name, source in self._sources.items()
        ]

    def calls(self) -> list[tuple[Indices, Call]]:
        """Return every call of the complete recordings, each with its indices."""
        return [
            ((r, t, c), call)
            for r, source in enumerate(self._sources.values())
            if isinstance(source, _Complete)
            for t, text in enumerate(source.texts)
            for c, call in enumerate(text.calls)
        ]

    def recording(self, index: int, tokens: int) -> Recording:
        """Return a recording of the first `tokens` tokens of a live text.

        Raises:
            ArgumentError: an index or `tokens` out of range, or the index of a complete recording.
        """
        source = self._source(index)
        if isinstance(source, _Complete):
            raise ArgumentError(f"complete recording {index}", expected="a text being generated")
        return source.source.recording(tokens)

    def call(self, recording: int, text: int, call: int, tokens: int | None = None) -> Call:
        """Return a call by its indices; `tokens` is required for a live text, and only for that.

        Raises:
            ArgumentError: an index out of range, or `tokens` that is missing or superfluous.
        """
        calls = self._source(recording).text(text, tokens).calls
        return calls[check_index("call", call, len(calls))]

    def scored(
        self, recording: int, text: int, call: int, tokens: int | None = None
    ) -> tuple[Call, ChanceScores]:
        """Return a call with reliable token ids only, and the cache of its text's chance scores."""
        source = self._source(recording).text(text, tokens)
        return source.scored[check_index("call", call, len(source.calls))], source.chance_scores

    def _source(self, index: int) -> _Complete | _Live:
        return list(self._sources.values())[check_index("recording", index, len(self._sources))]


def call_id(indices: Indices) -> str:
    """Return the identifier of a call in the page, such as "0.0.3"."""
    return ".".join(map(str, indices))


def title_of(texts: list[str], other: list[str] | None = None) -> str:
    """Return texts as a title of one line, cut to `TITLE_LENGTH` characters.

    If `other` begins with the same words, the title begins a word before the first difference.

    >>> title_of(["The keys to the cabinet are on the table"], ["The keys to the cabinet is here"])
    '… cabinet are on the table'
    """
    words = " · ".join(texts).split()
    pairs = zip(words, " · ".join(other or []).split(), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = shared - 1 if shared > SHARED and shared < len(words) else 0
    line = " ".join((["…"] if start else []) + words[start:])
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


def _mark(texts: list[Text], segments: SegmentSpecs) -> None:
    """Mark the segments in each text that they fit.

    Raises:
        ArgumentError: the segments fit none of the texts.
    """
    errors = []
    for text in texts:
        try:
            text.mark(segments)
        except ArgumentError as error:
            errors.append(error)
    if len(errors) == len(texts) and errors:
        raise errors[0]
