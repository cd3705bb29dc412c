"""`Sequence`, the calls on one text of a batch (or a part of it), with statistics and plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.configuration import nearest
from heedful.errors import ArgumentError, RunError
from heedful.lazy_imports import import_name
from heedful.ops.rollout import rollout
from heedful.recording import generation
from heedful.recording.call import Call
from heedful.recording.capture import Capture
from heedful.recording.checks import is_integer, nothing_recorded
from heedful.recording.heads import Head, heads_of
from heedful.recording.images import Images
from heedful.recording.module_names import side_of
from heedful.recording.progress import OnProgress, sub_progress
from heedful.recording.segment_masks import SegmentSpecs
from heedful.recording.segment_table import Segments
from heedful.recording.segments import segments_of_calls
from heedful.recording.token_labels import Sides, Texts, set_text, unknown_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_STITCHED = 1 << 18  # an HTML table stitches passes with at most this many keys in total


class Sequence:
    """The calls on one text, or on one part of a text, without padding, in execution order."""

    def __init__(
        self, captures: list[Capture], index: int, texts: Texts | None = None,
        images: Images | None = None, part: int = 0,
    ) -> None:  # fmt: skip
        self._index, self._part, self._texts = index, part, texts or Texts()
        self._images, self._all = images or Images(), captures
        self._select(captures)

    @property
    def _sequence_captures(self) -> list[Capture]:
        return self._matching

    def _select(self, captures: list[Capture]) -> None:
        self._matching = [call for call in captures if has_part(call, self._index, self._part)]
        self._calls: dict[int, Call] = {}
        self._sides: tuple[int, Sides] | None = None  # cached, with the number of calls it is for

    def recording_ref(self) -> Any:
        """Return the recording that contains the sequence, or None if it was deleted."""
        return self._texts.recording_ref()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} call{'' if len(self) == 1 else 's'}>"

    def __len__(self) -> int:
        return len(self._sequence_captures)

    def __iter__(self) -> Iterator[Call]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int | str) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...
    def __getitem__(self, index: int | str | slice) -> Call | list[Call]:
        """Return a call by its index, or the first call of a module by the module's name."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if isinstance(index, str):
            return self[self._first_of(index)]
        if not is_integer(index):
            raise ArgumentError(f"call {index!r}", expected="an index, a module's name or a slice")
        if not -len(self) <= index < len(self):
            if not self._sequence_captures:
                raise IndexError(f"call {index}, and {nothing_recorded()}")
            raise IndexError(f"call {index} of {len(self)}")
        number = int(index) % len(self)
        if number not in self._calls:
            self._calls[number] = self._call(number)
        return self._calls[number]

    def _first_of(self, name: str) -> int:
        names = [capture.name for capture in self._sequence_captures]
        if name not in names:
            expected = nearest(name, dict.fromkeys(names)) if names else "a recorded module"
            raise ArgumentError(f"no call of {name!r}", expected=expected)
        return names.index(name)

    def _call(self, number: int) -> Call:
        capture = self._sequence_captures[number]
        if not len(capture.query):
            raise RunError(
                f"no sequence in {capture.name}, pass {capture.pass_index}",
                expected="a batch of at least one text",
                cause="a model that received an empty batch",
            )
        return self._call_on_part(capture, self._part)

    def _call_on_part(self, capture: Capture, number: int) -> Call:
        call = self.part(number)._with_texts(call_of(capture, self._index, number))
        if capture.parts > 1:
            numbers = range(capture.parts)
            call.list_parts = lambda: [self._call_on_part(capture, number) for number in numbers]
        return call

    def part(self, number: int) -> Sequence:
        """Return the calls on a part of the text, such as a window, by the index of the part."""
        if number == self._part:
            return self
        return Sequence(self._all, self._index, self._texts, self._images, number)

    @property
    def parts(self) -> list[Sequence]:
        """The calls on each part of the text, such as a window; some calls may have fewer parts."""
        count = max((capture.parts for capture in self._sequence_captures), default=1)
        return [self.part(number) for number in range(count)]

    def _with_texts(self, call: Call, sides: Sides | None = None) -> Call:
        texts, sides = self._texts, self.sides if sides is None else sides
        is_target, (_, N, M) = sides.is_target(call.name), call.shape

        def names(is_target: bool | None, ids: Tensor | None, length: int) -> list[str] | None:
            text = set_text(texts, is_target, self._index, ids, sides, length)
            return text or texts.names_of(ids)

        call.key_tokens = names(False if call.is_cross else is_target, call.ids, M)
        if call.is_cross:
            call.query_tokens = names(is_target, call.query_ids, N)
        elif call.key_tokens is not None:
            first = call.causes.offset
            call.query_tokens = call.key_tokens[first : first + N]
        else:  # the pass has a cache, and the ids of its keys are unknown
            call.query_tokens = texts.names_of(call.query_ids)
        call.unknown = unknown_of(texts, call.ids, call.key_tokens)
        call.recording_ref = texts.recording_ref
        return self._with_pictures(call)

    def _with_pictures(self, call: Call) -> Call:
        """Set a call's pictures, and name its tokens by their patches."""
        if not self._images.pixels:
            return call
        capture = next(item for item in self._sequence_captures if item.name == call.name)
        row, batch = self._index * capture.parts + self._part, capture.texts * capture.parts
        call.key_picture = self._images.picture(call, "keys", row, batch)
        call.query_picture = self._images.picture(call, "queries", row, batch)
        if call.key_picture is not None:
            call.key_tokens = call.key_picture.names
        if call.query_picture is not None:
            call.query_tokens = call.query_picture.names
        return call

    @property
    def sides(self) -> Sides:
        """The source and the target of an encoder–decoder, and which calls attend to them."""
        if self._sides is None or self._sides[0] != len(self):
            self._sides = len(self), Sides(self._sequence_captures, self._index)
        return self._sides[1]

    @property
    def texts(self) -> list[str] | None:
        """The text of each token (encoder–decoder: of each source token); None if unknown."""
        return self._text(False)

    def _text(self, is_target: bool) -> list[str] | None:
        """Return the token names that were set for one side, or else those of its ids."""
        texts = self._texts.side(is_target)
        if texts is None:
            return self._texts.names_of(self.sides.ids(is_target))
        return texts[self._index] if self._index < len(texts) else None

    def summary(self, progress: OnProgress | None = None) -> dict[str, Tensor | list]:
        """Return the statistics of `Call.summary` for all calls, by name.

        "received" is a list with a tensor (heads, M) for each call; every other statistic is a
        tensor (calls, heads). Calls with fewer heads than others are padded with NaN; `call.heads`
        lists a call's heads. If all tokens are padding, all values are NaN.

        `progress` is called with the completed share, 0 to 1, after each block of rows.

        Raises:
            RunError: nothing was recorded, a call is refuted, or its file is damaged.
        """
        count = len(self)
        summaries = [call.summary(sub_progress(progress, i, count)) for i, call in enumerate(self)]
        if not summaries:
            raise nothing_recorded()
        result: dict[str, Tensor | list] = {
            name: pad_sequence([summary[name] for summary in summaries], True, torch.nan)
            for name in summaries[0]
            if name != "received"
        }
        result["received"] = [summary["received"] for summary in summaries]
        return result

    def heads(
        self, progress: OnProgress | None = None, *, only: Iterable[tuple[int, int]] | None = None
    ) -> list[Head]:
        """Return every head of every call with its scores, its kind, and the evidence for both.

        `only` selects heads by (layer, head), such as the starred heads of the explorer's page.
        """
        chosen = None if only is None else set(only)
        heads = heads_of(list(self), progress)
        return [head for head in heads if chosen is None or head[:2] in chosen]

    def rollout(self, query: int, layer: int | None = None) -> Tensor:
        """Compute the attention rollout of a query up to a layer, default the last: (N,).

        `heedful.ops.rollout` defines it and its errors. It is no proof of cause.
        """
        calls = [call for call in self if layer is None or (call.layer or 0) <= layer]
        return rollout((map(call.weights, call.heads) for call in rollout_calls(calls)), query)

    def segments(
        self, segments: SegmentSpecs, *, target: SegmentSpecs | None = None,
        progress: OnProgress | None = None,
    ) -> Segments:  # fmt: skip
        """Compute how much each head attends from each segment of queries to each segment of keys.

        `heedful.ops.segments` defines the shares. The passes of a generation are stitched, so that
        each token has one index.

        Args:
            segments: the segments of the text (of an encoder–decoder's source), by name. Each is a
                slice, a range, a list of indices, a boolean per token, or a text that occurs once
                in the tokens. They may overlap. "rest" contains the tokens in no segment.
            target: in an encoder–decoder, the segments of the target. If only one text is given
                segments, all of the other is one segment, "source" or "target".
            progress: as in `summary`.

        Returns:
            a list of `SegmentShare`s, which prints as a table; its `left_out` lists modules that
            are not in it, because they attend over other tokens.

        Raises:
            ArgumentError: no segment, a reserved name, a segment without a token, an index out of
                range, a text that does not occur exactly once, a target for a model with one text.
            RunError: nothing was recorded, the passes are not one generation, or no call attends
                over the full text.
        """
        return segments_of_calls(self._stitched()[0], self.sides, segments, target, progress)

    def plot(
        self, *, layers: Iterable[int] | int | None = None,
        heads: Iterable[int] | int | None = None, part: str | None = None,
        pass_index: int | None = None, title: str | None = None, scale: str | None = None,
        highest: float | None = None, size: float | None = None, values: bool | None = None,
        reduce: str = "max", progress: OnProgress = lambda share: None,
    ) -> Figure:  # fmt: skip
        """Draw the maps as a figure, a row for each layer and a column for each head.

        In each map, rows are queries, columns are keys, and masked cells are striped. A map of more
        than a few hundred tokens is pooled, with a note in the figure. The passes of a generation
        are stitched; other passes are drawn separately.

        Args:
            layers, heads: a number in the model, a list or a range of them; default all.
            part: for an encoder–decoder, "encoder", "decoder" or "cross"; default all three.
            pass_index: the index of a forward pass; default all.
            title: the title of the figure.
            scale: the colour scale, "linear", "sqrt" or "log"; default "linear" up to 10 tokens,
                "sqrt" above.
            highest: the weight at the end of the colour scale; default the largest weight.
            size: the width in inches; default 9, and more for many heads.
            values: whether to print the weights; by default if there are at most 10 tokens and the
                numbers fit.
            reduce: the pooling of cells, "max" or "mean".
            progress: called with the completed share, 0 to 1.

        Returns:
            a matplotlib figure, which a notebook displays; `figure.savefig("heads.png")` writes it.

        Raises:
            ArgumentError: an unknown layer, head, part or pass, or too many maps for a figure.
            RunError: nothing was recorded, or all tokens are padding.
        """
        from heedful.recording.figure import Selection, picture

        calls, notes = self._stitched(pass_index)
        return picture(calls, Selection(layers, heads, part, pass_index), reduce=reduce, size=size,
                       notes=[*self._position(), *notes], title=title, scale=scale, highest=highest,
                       values=values, progress=progress)  # fmt: skip

    def _stitched(self, pass_index: int | None = None) -> tuple[list[Call], list[str]]:
        """Return the calls, and notes. If possible, stitch a generation, and say so in a note."""
        calls = list(self)
        passes = len({call.pass_index for call in calls})
        if pass_index is not None or passes < 2 or self._part:
            return calls, []
        try:
            stitched = generation.stitched(self._sequence_captures, self._index)
        except RunError:
            return calls, []
        modules = {call.name for call in stitched}
        others = [call for call in calls if call.name not in modules]
        named = [replace(call, pass_index=0) for call in map(self._with_texts, stitched)]
        return [*others, *named], [f"a generation of {passes:,} passes, drawn as one"]

    def _repr_html_(self) -> str:
        from heedful.recording.html_table import html

        keys = sum(capture.key.shape[-2] for capture in self._sequence_captures)
        calls, notes = self._stitched() if keys <= MAX_STITCHED else (list(self), [])
        attributes = {"text": "sequences", "part": "parts"}
        notes += [f"{line}: .{attributes[line[:4]]} has all" for line in self._position()]
        return html(calls, repr(self).strip("<>"), "recording[0]", notes)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return the explorer's page, for notebooks that can show it."""
        return import_name("heedful.views.notebook.display", "bundle")(self)

    def _position(self) -> list[str]:
        """Return notes such as "text 0 of 2", if the batch has several texts or parts of texts."""
        texts = max((capture.texts for capture in self._sequence_captures), default=0)
        parts = max((capture.parts for capture in self._sequence_captures), default=0)
        counts = (("text", self._index, texts), ("part", self._part, parts))
        return [f"{word} {number} of {count}" for word, number, count in counts if count > 1]


class Sequences(list[Sequence]):
    """The sequences (texts) of a batch, as a list; an invalid index raises an ArgumentError."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Sequence | list[Sequence]:
        if is_integer(index) and not -len(self) <= index < len(self):
            numbers = f"0 to {len(self) - 1}" if len(self) > 1 else "0"
            numbers += f": {len(self)} in the batch"
            expected = numbers if self else "none: nothing was recorded"
            raise ArgumentError(f"sequence {index}", expected=expected)
        return super().__getitem__(index)


def has_part(capture: Capture, text: int, part: int) -> bool:
    """Return whether a call has a part of a text; an empty batch counts as part 0 of text 0."""
    return capture.has_sequence(text, part) or (text == part == 0 and not len(capture.query))


def call_of(capture: Capture, text: int, part: int = 0) -> Call:
    """Return a stored call on one part of one text, without padding."""
    return Call(
        capture.name, capture.layer, capture.pass_index, capture.kind, capture.inputs(text, part),
        capture.check, index=capture.index, layout_of_axes=capture.layout,
        sums=capture.row_sums(text, part), refutations=capture.refutations,
        row=capture.row(text, part), sequence=text, part=part, batch=capture.texts,
        map_=capture.map_of(text, part), value=capture.values(text, part),
        ids=capture.key_ids(text, part), query_ids=capture.ids_of_queries(text, part),
        door=capture.door, chosen=capture.heads, check_file=capture.check_file,
    )  # fmt: skip


def rollout_calls(calls: list[Call]) -> list[Call]:
    """Return the calls of a rollout up to the last of `calls`, the last one first.

    Raises:
        ArgumentError: the last call is cross-attention, or an earlier layer was not recorded.
    """
    last = calls[-1] if calls else None
    if last is None or last.is_cross:
        ending = "no call" if last is None else f"{last.name}, which is cross-attention"
        raise ArgumentError(f"a rollout up to {ending}", expected="a layer of self-attention")
    place = side_of(last.name), last.pass_index
    same = [c for c in calls if not c.is_cross and (side_of(c.name), c.pass_index) == place]
    layers = [call.layer for call in same if call.layer is not None]
    if layers and sorted(set(layers)) != list(range(layers[-1] + 1)):
        raise ArgumentError(
            f"a rollout over layers {layers}",
            expected="all layers from 0",
            cause="record(layers=…)",
        )
    return same[::-1]
