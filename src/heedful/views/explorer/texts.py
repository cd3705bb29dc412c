"""What a page may choose from: recordings, their texts, and the calls of each.

A text is one sequence of a batch; a generation, with its many passes, is also there as one. One
that is still being written has calls for each number of tokens that it has had.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor

from heedful.errors import ArgumentError, HeedfulError
from heedful.recorder import Call, Recording
from heedful.recorder.kept.head_types import Even
from heedful.recorder.kept.heads import with_sure_ids
from heedful.recorder.kept.marked import Told
from heedful.recorder.kept.segments import SOURCE, TARGET, Read, marks_of, read_by
from heedful.recorder.kept.texts import Sides
from heedful.views.explorer.choosing import chosen
from heedful.views.explorer.images import pictured

NAMED = 40  # characters of a text by which it is called
SIZES = 16  # of texts that grow, whose calls are kept: a page asks for the newest ones

SIDES = {False: SOURCE, True: TARGET}  # what is read, and what is written


@dataclass
class Text:
    """The calls on one text.

    label: which text it is.
    calls: in their order.
    code: the Python that gives the list of all of them, of a `recording`.
    prompt: of a generation as one, how many tokens it began with.
    places: of the calls in that list; None where they are all of it.
    even: what its heads' scores share.
    sides: which of its calls read, and which write, in an encoder–decoder.
    read: which text's tokens each call's queries and keys are.
    marks: segments that are marked at first, of what is read and of what is written.
    """

    label: str
    calls: list[Call]
    code: str = "recording"
    prompt: int | None = None
    places: list[int] | None = None
    even: Even = field(default_factory=Even)
    sides: Sides | None = None
    read: list[Read] | None = None
    marks: dict[bool, dict[str, Tensor]] = field(default_factory=dict)

    def of(self, layers: list[int] | None, heads: list[int] | None) -> Text:
        """The same of some layers and heads; errors as `chosen`."""
        calls = chosen(self.calls, layers, heads)
        rest = iter(enumerate(self.calls))
        places = [next(at for at, one in rest if _same(one, call)) for call in calls]
        every = read_by(self.calls, self.sides) if self.sides else []
        read = [every[at] for at in places] if every else None
        return replace(self, calls=calls, places=places, read=read, even=Even())

    def mark(self, told: Told) -> None:
        """Mark segments of what is read; errors as `Sequence.segments`."""
        if self.sides is not None:
            self.marks = marks_of(self.calls, self.sides, told)

    @cached_property
    def scored(self) -> list[Call]:
        """The calls as their heads are scored: with the tokens that are sure."""
        return with_sure_ids(self.calls)

    def about(self) -> dict[str, Any]:
        """What a page needs to list it."""
        places = self.places or range(len(self.calls))
        read = self.read or [Read(False, False)] * len(self.calls)
        calls = [_about(*each) for each in zip(self.calls, places, read, strict=True)]
        return {
            "label": self.label,
            "code": self.code,
            "prompt": self.prompt,
            "crosses": self.sides is not None and self.sides.crosses,
            "marks": {
                SIDES[writes]: [{"name": name, "runs": runs_of(own)} for name, own in of.items()]
                for writes, of in self.marks.items()
            },
            "calls": calls,
        }


class Grows(Protocol):
    """A text that is being written: `GrowingText`."""

    @property
    def tokens(self) -> int:
        """How many there are by now."""

    @property
    def missed(self) -> Mapping[str, str]:
        """Modules whose attention was not understood, and why."""

    def at(self, tokens: int) -> Text:
        """The calls on the first tokens."""

    def recording(self, tokens: int) -> Recording:
        """These tokens as a recording of one pass."""


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
        self._layers, self._heads = layers, heads
        self._of: list[tuple[str, Recording | Grows, list[Text]]] = []
        self._sized = lru_cache(SIZES)(self._at_size)
        for name, recording in recordings.items():
            self.add(name, recording)
            if segments:
                _mark(self._of[-1][2], segments)

    def add(self, name: str, recording: Recording) -> None:
        """One more recording; a name that is taken gets a number."""
        found = [text.of(self._layers, self._heads) for text in _texts_of(recording)]
        self._of.append((self._free(name), recording, found))

    def grow(self, name: str, text: Grows) -> int:
        """One more recording, of a text that is being written; its number."""
        text.at(text.tokens).of(self._layers, self._heads)  # or it raises before it is there
        self._of.append((self._free(name), text, []))
        return len(self._of) - 1

    def _free(self, name: str) -> str:
        names = (name if n == 1 else f"{name} ({n})" for n in count(1))
        return next(each for each in names if each not in self.names)

    @property
    def names(self) -> list[str]:
        """The name of each recording."""
        return [name for name, *_ in self._of]

    def about(self) -> list[dict[str, Any]]:
        """Each recording with its texts and calls; how many tokens one has that may grow."""
        found = []
        for number, (name, recording, texts) in enumerate(self._of):
            told = [text.about() for text in texts]
            if not isinstance(recording, Recording):
                size = recording.tokens
                told = [{**self._sized(number, size).about(), "tokens": size}]
            found.append({"name": name, "missed": recording.missed, "texts": told})
        return found

    def whole(self, recording: int, tokens: int) -> Recording:
        """The recording of a text that grows, with so many tokens.

        Raises:
            ArgumentError: there is none of these numbers.
        """
        return self._growing(recording).recording(tokens)

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

    def marked(
        self, recording: int, text: int, tokens: int | None = None
    ) -> dict[bool, dict[str, Tensor]]:
        """The segments that are marked at first, of what is read and of what is written."""
        return self._text(recording, text, tokens).marks

    def _text(self, recording: int, text: int, tokens: int | None) -> Text:
        if tokens is not None:
            _place("text", text, 1)
            return self._sized(recording, tokens)
        _, of, texts = self._of[_place("recording", recording, len(self._of))]
        if not isinstance(of, Recording):  # without a length no answer is the same for good
            raise ArgumentError(
                f"recording {recording}, whose text grows", expected="with a number of tokens"
            )
        return texts[_place("text", text, len(texts))]

    def _at_size(self, recording: int, tokens: int) -> Text:
        return self._growing(recording).at(tokens).of(self._layers, self._heads)

    def _growing(self, recording: int) -> Grows:
        _, of, _ = self._of[_place("recording", recording, len(self._of))]
        if isinstance(of, Recording):
            raise ArgumentError(f"recording {recording}", expected="one whose text grows")
        return of


def short(text: str) -> str:
    """What a text is called: its beginning, in one line."""
    found = " ".join(text.split())
    return found if len(found) <= NAMED else found[: NAMED - 1] + "…"


def _place(what: str, at: int, size: int) -> int:
    if not 0 <= at < size:
        raise ArgumentError(f"{what} {at}", expected=f"0 to {size - 1}" if size else "none")
    return at


def _texts_of(recording: Recording) -> list[Text]:
    found = []
    several = len(recording.sequences) > 1
    for number, sequence in enumerate(recording.sequences):
        name = f"text {number + 1}" if several else "the text"
        code = f"recording.sequences[{number}]" if several else "recording"
        calls = list(sequence)
        if len({call.pass_index for call in calls}) > 1:
            with suppress(HeedfulError):
                as_one = recording.stitched(number)
                stitched = f"recording.stitched({number})"
                found.append(
                    Text(f"{name}, as one", as_one, stitched, _prompt(calls), sides=sequence.sides)
                )
            name = f"{name}, pass by pass"
        found.append(Text(name, calls, code, sides=sequence.sides))
    return found


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


def runs_of(own: Tensor) -> list[list[int]]:
    """The runs of neighbours among the tokens of a segment, [first, end)."""
    edges = torch.nn.functional.pad(own.int(), (1, 1)).diff().nonzero()[:, 0]
    return edges.view(-1, 2).tolist()


def _prompt(calls: list[Call]) -> int | None:
    """How many tokens the first pass of a generation was given."""
    first = min(call.pass_index for call in calls)
    own = (call for call in calls if call.pass_index == first and call.kind == "causal")
    return next((call.shape[2] for call in own), None)


def _same(one: Call, other: Call) -> bool:
    """Whether two calls are the same, of whichever heads."""
    mine, others = ((call.name, call.index, call.pass_index) for call in (one, other))
    return mine == others


def _about(call: Call, at: int, read: Read) -> dict[str, Any]:
    H, N, M = call.shape
    return {
        "reads": None if read.why_not else [SIDES[bool(read.queries)], SIDES[bool(read.keys)]],
        "apart": read.why_not,
        "at": at,
        "name": call.name,
        "layer": call.layer,
        "index": call.index,
        "pass": call.pass_index,
        "kind": call.kind,
        "proof": call.proof,
        "why": call.why,
        "heads": call.heads,
        "shape": [H, N, M],
        "first": call.causes.offset,
        "named": call.key_tokens is not None,
        "pictured": pictured(call),
    }
