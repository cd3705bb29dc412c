"""The calls of one sequence of a batch, without its padding, and what one asks of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.configuration import nearest
from heedful.errors import ArgumentError, RunError
from heedful.lazy_imports import wired
from heedful.recording import generation
from heedful.recording.call import Call
from heedful.recording.capture import Capture
from heedful.recording.checks import is_whole, nothing_recorded
from heedful.recording.heads import Head, heads_of
from heedful.recording.images import Images
from heedful.recording.progress import Tell, within
from heedful.recording.segment_masks import Told
from heedful.recording.segment_table import Segments
from heedful.recording.segments import of_calls
from heedful.recording.token_labels import Sides, Texts, set_text, unknown_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STITCHED = 1 << 18  # keys of all passes, up to which a table shows a generation as one


class Sequence:
    """The calls of one sequence, in the order in which they happened."""

    def __init__(
        self, captures: list[Capture], index: int, texts: Texts | None = None,
        images: Images | None = None, part: int = 0,
    ) -> None:  # fmt: skip
        self._index, self._part, self._texts = index, part, texts or Texts()
        self._images, self._all = images or Images(), captures
        self._hold(captures)

    @property
    def _own(self) -> list[Capture]:
        """Its calls."""
        return self._held

    def _hold(self, captures: list[Capture]) -> None:
        """Have those calls that have this part of the text."""
        self._held = [of for of in captures if has_part(of, self._index, self._part)]
        self._calls: dict[int, Call] = {}
        self._of_sides: tuple[int, Sides] | None = None  # and of how many calls

    def home(self) -> Any:
        """The recording that it is of, or None where nobody holds that any more."""
        return self._texts.home()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} call{'' if len(self) == 1 else 's'}>"

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Call]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int | str) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...
    def __getitem__(self, index: int | str | slice) -> Call | list[Call]:
        """A call by its number or by the name of its module, of which it is the first."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if isinstance(index, str):
            return self[self._first_of(index)]
        if not is_whole(index):
            raise ArgumentError(
                f"call {index!r}", expected="its number, the name of its module, or a slice"
            )
        if not -len(self) <= index < len(self):
            if not self._own:
                raise IndexError(f"call {index}, and {nothing_recorded()}")
            raise IndexError(f"call {index} of {len(self)}")
        at = int(index) % len(self)
        if at not in self._calls:
            self._calls[at] = self._call(at)
        return self._calls[at]

    def _first_of(self, name: str) -> int:
        names = [capture.name for capture in self._own]
        if name not in names:
            expected = nearest(name, dict.fromkeys(names)) if names else "a recorded one"
            raise ArgumentError(f"no call of {name!r}", expected=expected)
        return names.index(name)

    def _call(self, at: int) -> Call:
        capture = self._own[at]
        if not len(capture.query):
            raise RunError(
                f"no sequence in {capture.name}, pass {capture.pass_index}",
                expected="a batch of at least one",
                cause="a model that was given an empty batch",
            )
        return self._of_part(capture, self._part)

    def _of_part(self, capture: Capture, number: int) -> Call:
        call = self.part(number)._with_texts(call_of(capture, self._index, number))
        if capture.parts > 1:
            numbers = range(capture.parts)
            call.of_parts = lambda: [self._of_part(capture, number) for number in numbers]
        return call

    def part(self, number: int) -> Sequence:
        """The calls of another part of the text, such as a window, of those that have so many."""
        if number == self._part:
            return self
        return Sequence(self._all, self._index, self._texts, self._images, number)

    @property
    def parts(self) -> list[Sequence]:
        """The text's parts, such as windows, of which some calls have more than others."""
        most = max((capture.parts for capture in self._own), default=1)
        return [self.part(number) for number in range(most)]

    def _with_texts(self, call: Call, sides: Sides | None = None) -> Call:
        """The call with the names of its tokens."""
        texts, sides = self._texts, self.sides if sides is None else sides
        writes, (_, N, M) = sides.writes(call.name), call.shape

        def names(writes: bool | None, ids: Tensor | None, length: int) -> list[str] | None:
            text = set_text(texts, writes, self._index, ids, sides, length)
            return text or texts.of_ids(ids)

        call.key_tokens = names(False if call.crosses else writes, call.ids, M)
        if call.crosses:
            call.query_tokens = names(writes, call.query_ids, N)
        elif call.key_tokens is not None:
            first = call.causes.offset
            call.query_tokens = call.key_tokens[first : first + N]
        else:  # of a pass with a cache whose keys are not known
            call.query_tokens = texts.of_ids(call.query_ids)
        call.unknown = unknown_of(texts, call.ids, call.key_tokens)
        call.home = texts.home
        return self._with_pictures(call)

    def _with_pictures(self, call: Call) -> Call:
        """The call with the images that it attends over, whose patches give tokens their names."""
        if not self._images.pixels:
            return call
        of = next(capture for capture in self._own if capture.name == call.name)
        row, batch = self._index * of.parts + self._part, of.texts * of.parts
        call.key_picture = self._images.of(call, "keys", row, batch)
        call.query_picture = self._images.of(call, "queries", row, batch)
        if call.key_picture is not None:
            call.key_tokens = call.key_picture.names
        if call.query_picture is not None:
            call.query_tokens = call.query_picture.names
        return call

    @property
    def sides(self) -> Sides:
        """Which of its calls read, and which write, in an encoder–decoder."""
        if self._of_sides is None or self._of_sides[0] != len(self):
            self._of_sides = len(self), Sides(self._own, self._index)
        return self._of_sides[1]

    @property
    def texts(self) -> list[str] | None:
        """The text of each token of the sequence, in an encoder–decoder of what it reads."""
        return self._text(False)

    def _text(self, writes: bool) -> list[str] | None:
        """The names of the tokens of one side: as they were set, else of its ids."""
        given = self._texts.side(writes)
        if given is None:
            return self._texts.of_ids(self.sides.ids(writes))
        return given[self._index] if self._index < len(given) else None

    def summary(self, progress: Tell | None = None) -> dict[str, Tensor | list]:
        """The statistics of every head of every call, (calls, heads), and `received` of each.

        Where calls have more heads than others, those have NaN in their place: `len(call.heads)`
        says how many a call has, and `call.heads` which. Without a real token all is NaN.

        `progress` is told of the share that is done, 0 to 1, as the pass goes on; an exception such
        as Ctrl-C ends it between two blocks.

        Raises:
            RunError: nothing was recorded, or a call that does not pass its own check.
        """
        count = len(self)
        summaries = [call.summary(within(progress, i, count)) for i, call in enumerate(self)]
        if not summaries:
            raise nothing_recorded()
        together: dict[str, Tensor | list] = {
            name: pad_sequence([summary[name] for summary in summaries], True, torch.nan)
            for name in summaries[0]
            if name != "received"
        }
        together["received"] = [summary["received"] for summary in summaries]
        return together

    def heads(self, progress: Tell | None = None) -> list[Head]:
        """Every head of every call with its scores, its kind, and the evidence for it."""
        return heads_of(list(self), progress)

    def segments(
        self, segments: Told, *, target: Told | None = None, progress: Tell | None = None
    ) -> Segments:
        """How much each head reads of each segment of the text, from each.

        A generation is taken as one (`stitched`), so that a token has one number. Definitions are
        in `heedful.ops.segments`.

        Args:
            segments: by name a slice, a range, a list of indices, a boolean for each token, or a
                text that occurs once among them; in an encoder–decoder of what it reads. They may
                overlap. What is in none is "rest".
            target: of an encoder–decoder, segments of what it writes. A text of which nothing is
                marked is one segment, "source" or "target".
            progress: as in `summary`.

        Returns:
            a list of `SegmentShare`s, which prints as a table; calls on other tokens are in its
            `left_out`.

        Raises:
            ArgumentError: a segment without a token, an index outside, a text that occurs nowhere
                or several times, a target of a model that reads one text.
            RunError: nothing was recorded, or passes that are no generation.
        """
        return of_calls(self._as_one(None)[0], self.sides, segments, target, progress)

    def plot(
        self, *, layers: Iterable[int] | int | None = None,
        heads: Iterable[int] | int | None = None, part: str | None = None,
        pass_index: int | None = None, title: str | None = None, scale: str | None = None,
        highest: float | None = None, size: float | None = None, values: bool | None = None,
        reduce: str = "max", progress: Tell = lambda share: None,
    ) -> Figure:  # fmt: skip
        """Its maps as a picture: a line is a layer, a column a head; rows are queries.

        What is masked is striped. A map of more than a few hundred tokens is pooled to the room
        that it has, and the picture says so. A generation is drawn as one (`stitched`); other
        passes each by themselves.

        Args:
            layers, heads: a number, a list or a range of the model's own numbers; default all.
            part: of an encoder–decoder "encoder", "decoder" or "cross"; default the three.
            pass_index: one forward pass of several.
            title: over the picture.
            scale: "linear", "sqrt" or "log"; default linear up to 10 tokens, then sqrt.
            highest: the weight at which the colours end; default the largest.
            size: the width in inches; default 9, and more for many heads.
            values: whether numbers stand in the cells; default up to 10 tokens, where they fit.
            reduce: how cells are pooled, "max" or "mean".
            progress: is told of the share that is done, 0 to 1.

        Returns:
            a matplotlib figure, which shows itself in a notebook; `figure.savefig("heads.png")`
            writes it.

        Raises:
            ArgumentError: what there is not, or does not fit on a picture.
            RunError: nothing was recorded.
        """
        from heedful.recording.figure import Chosen, picture

        calls, notes = self._as_one(pass_index)
        return picture(calls, Chosen(layers, heads, part, pass_index), reduce=reduce, size=size,
                       notes=[*self._which(), *notes], title=title, scale=scale, highest=highest,
                       values=values, progress=progress)  # fmt: skip

    def _as_one(self, pass_index: int | None) -> tuple[list[Call], list[str]]:
        """The calls to draw: the passes of a generation as one, with what is to be said of it."""
        calls = list(self)
        passes = len({call.pass_index for call in calls})
        if pass_index is not None or passes < 2 or self._part:
            return calls, []
        try:
            whole = generation.stitched(self._own, self._index)
        except RunError:
            return calls, []
        known = {call.name for call in whole}
        others = [call for call in calls if call.name not in known]
        named = [replace(call, pass_index=0) for call in map(self._with_texts, whole)]
        return [*others, *named], [f"a generation of {passes:,} passes, drawn as one"]

    def _repr_html_(self) -> str:
        """What a notebook shows: a table with a small picture of each head."""
        from heedful.recording.notebook import html

        is_cheap = sum(capture.key.shape[-2] for capture in self._own) <= STITCHED
        calls, notes = self._as_one(None) if is_cheap else (list(self), [])
        where = {"text": "sequences", "part": "parts"}
        notes += [f"{which}: .{where[which[:4]]} has each" for which in self._which()]
        return html(calls, repr(self).strip("<>"), "recording[0]", notes)

    def _repr_mimebundle_(self, **given: Any) -> Any:
        """What a notebook shows where it can: the explorer's page."""
        return wired("in a notebook")(self)

    def _which(self) -> list[str]:
        """Which text of a batch, and which part of a text it is, where there are several."""
        texts = max((capture.texts for capture in self._own), default=0)
        parts = max((capture.parts for capture in self._own), default=0)
        counts = (("text", self._index, texts), ("part", self._part, parts))
        return [f"{word} {number} of {count}" for word, number, count in counts if count > 1]


class Sequences(list[Sequence]):
    """The sequences of a batch; an ArgumentError says how many there are, if none has a number."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Sequence | list[Sequence]:
        if is_whole(index) and not -len(self) <= index < len(self):
            numbers = f"0 to {len(self) - 1}" if len(self) > 1 else "0"
            expected = (
                f"{numbers}: {len(self)} in the batch" if self else "none: nothing was recorded"
            )
            raise ArgumentError(f"sequence {index}", expected=expected)
        return super().__getitem__(index)


def has_part(capture: Capture, text: int, part: int) -> bool:
    """Whether a call has a sequence; one of an empty batch is in the first, and raises there."""
    return capture.has(text, part) or (text == part == 0 and not len(capture.query))


def call_of(capture: Capture, text: int, part: int = 0) -> Call:
    """One sequence of a call, without its padding."""
    return Call(
        capture.name, capture.layer, capture.pass_index, capture.kind, capture.causes(text, part),
        capture.check, index=capture.index, layout_of_axes=capture.layout,
        sums=capture.row_sums(text, part), refutations=capture.against, row=capture.row(text, part),
        sequence=text, part=part, batch=capture.texts, map_=capture.map_of(text, part),
        value=capture.values(text, part), ids=capture.key_ids(text, part),
        query_ids=capture.ids_of_queries(text, part), door=capture.door, chosen=capture.heads,
        intact=capture.intact,
    )  # fmt: skip
