"""The texts of a recording: their calls, marked segments and images."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, HeedfulError
from heedful.recording import Call, Recording
from heedful.recording.head_scores import ChanceScores
from heedful.recording.heads import with_reliable_ids
from heedful.recording.image_patches import Picture
from heedful.recording.pixels import shrink
from heedful.recording.row_sums import RowSums
from heedful.recording.segment_masks import SegmentSpecs
from heedful.recording.segments import SOURCE, TARGET, CallTexts, segment_masks_of, texts_read_by
from heedful.recording.token_labels import Sides

SIDES = {False: SOURCE, True: TARGET}  # by whether a text is the target
AXES = ("queries", "keys")
LONGEST = 1024  # pixels of the longer side of an image that a server sends
IN_FILE = (512, 256, 128, 64)  # that side in a standalone page: the largest at which all fit


@dataclass
class Text:
    """The calls on one text.

    label: the name of the text or of a part of it.
    calls: in the order in which the model made them.
    code: a Python expression for the list of all calls on the text, given `recording`.
    prompt: the number of prompt tokens, if the text is all passes of a generation.
    places: the indices of `calls` in that list; None if `calls` is the full list.
    chance_scores: the cache of chance scores for all calls.
    sides: which calls read the source of an encoder–decoder and which read the target.
    read: for each call, the text of its queries and the text of its keys.
    marks: the initially marked segments of the source (False) and of the target (True).
    """

    label: str
    calls: list[Call]
    code: str = "recording"
    prompt: int | None = None
    places: list[int] | None = None
    chance_scores: ChanceScores = field(default_factory=ChanceScores)
    sides: Sides | None = None
    read: list[CallTexts] | None = None
    marks: dict[bool, dict[str, Tensor]] = field(default_factory=dict)

    def select(self, layers: list[int] | None, heads: list[int] | None) -> Text:
        """Return the text with these layers and heads only; errors as in `select_calls`."""
        calls = select_calls(self.calls, layers, heads)
        rest = iter(enumerate(self.calls))
        places = [next(i for i, other in rest if is_same_call(other, call)) for call in calls]
        texts = texts_read_by(self.calls, self.sides) if self.sides else []
        read = [texts[i] for i in places] if texts else None
        return replace(self, calls=calls, places=places, read=read, chance_scores=ChanceScores())

    def mark(self, segments: SegmentSpecs) -> None:
        """Set the initially marked segments; errors as in `Sequence.segments`."""
        if self.sides is not None:
            self.marks = segment_masks_of(self.calls, self.sides, segments)

    @cached_property
    def scored(self) -> list[Call]:
        """The calls for scoring heads: with token ids only where they are reliable."""
        return with_reliable_ids(self.calls)

    def about(self) -> dict[str, Any]:
        """Return the description of the text for the page."""
        places = self.places or range(len(self.calls))
        read = self.read or [CallTexts(False, False)] * len(self.calls)
        calls = [_about(*entry) for entry in zip(self.calls, places, read, strict=True)]
        return {
            **{name: getattr(self, name) for name in ("label", "code", "prompt")},
            "crosses": self.sides is not None and self.sides.has_cross,
            "marks": {
                SIDES[side]: [{"name": name, "runs": runs_of(mask)} for name, mask in marks.items()]
                for side, marks in self.marks.items()
            },
            "calls": calls,
        }


def texts_of(recording: Recording) -> list[Text]:
    """Return a text per part of each sequence, and for a generation a text of all passes."""
    texts = []
    sequences = recording.sequences
    several = len(sequences) > 1
    for number, sequence in enumerate(sequences):
        name = f"text {number + 1}" if several else "the text"
        code = f"recording.sequences[{number}]" if several else "recording"
        parts = sequence.parts
        if len({call.pass_index for call in sequence}) > 1:
            with suppress(HeedfulError):
                calls, label = recording.stitched(number), f"{name}, all passes"
                stitched = f"recording.stitched({number})"
                prompt = _prompt(list(sequence))
                texts.append(Text(label, calls, stitched, prompt, sides=sequence.sides))
            name = f"{name}, pass by pass"
        for i, part in enumerate(parts):
            if not len(part):  # no call could be assigned to this part
                continue
            label, index = (f", part {i + 1}", f".parts[{i}]") if len(parts) > 1 else ("", "")
            texts.append(Text(name + label, list(part), code + index, sides=part.sides))
    return texts


def runs_of(mask: Tensor) -> list[list[int]]:
    """Return the runs of adjacent tokens of a segment, [start, stop)."""
    edges = torch.nn.functional.pad(mask.int(), (1, 1)).diff().nonzero()[:, 0]
    return edges.view(-1, 2).tolist()


def _prompt(calls: list[Call]) -> int | None:
    """Return the number of tokens of the first pass of a generation."""
    first = min(call.pass_index for call in calls)
    prompts = (call for call in calls if call.pass_index == first and call.kind == "causal")
    return next((call.shape[2] for call in prompts), None)


def is_same_call(call: Call, other: Call) -> bool:
    """Return whether two calls are the same, apart from their heads."""
    first, second = (
        (item.name, item.index, item.pass_index, item.sequence, item.part, item.shape[1:])
        for item in (call, other)
    )
    return first == second


def _about(call: Call, index: int, read: CallTexts) -> dict[str, Any]:
    H, N, M = call.shape
    return {
        "reads": None if read.mismatch else [SIDES[bool(side)] for side in read[:2]],
        "apart": read.mismatch, "at": index, "name": call.name, "layer": call.layer,
        "index": call.index, "pass": call.pass_index, "kind": call.kind, "proof": call.proof,
        "layout": call.layout, "why": call.why, "heads": call.heads, "shape": [H, N, M],
        "first": call.causes.offset, "named": call.key_tokens is not None,
        "pictured": image_axes(call), "values": call.value is not None,
    }  # fmt: skip


def select_calls(
    calls: list[Call], layers: Iterable[int] | None = None, heads: Iterable[int] | None = None
) -> list[Call]:
    """Return the calls of some layers, each with some of its heads.

    Args:
        calls: the calls of a text.
        layers, heads: numbers in the model, from 0; default all. A call without any of these heads
            is omitted, because layers may differ in their number of heads.

    Raises:
        ArgumentError: a layer or a head that no call has.
    """
    if layers is not None:
        _check(layers, {call.layer for call in calls if call.layer is not None}, "layer")
        calls = [call for call in calls if call.layer in set(layers)]
    if heads is None:
        return calls
    _check(heads, {head for call in calls for head in call.heads}, "head")
    pairs = [(call, [head for head in call.heads if head in set(heads)]) for call in calls]
    return [_with_heads(call, selected) for call, selected in pairs if selected]


def _check(numbers: Iterable[int], recorded: set[int], kind: str) -> None:
    for number in numbers:
        if number not in recorded:
            run = sorted(recorded)
            listed = f"{run[0]} to {run[-1]}" if len(run) > 1 else ", ".join(map(str, run))
            raise ArgumentError(
                f"{kind} {number}", expected=f"one of the {kind}s {listed or 'none'}"
            )


def _with_heads(call: Call, heads: list[int]) -> Call:
    """Return the call with some of its heads, each with a separate copy of its key."""
    if heads == call.heads:
        return call
    places = torch.tensor([call.heads.index(head) for head in heads], device="cpu")
    value, inputs = call.value, call.causes.of_heads(places)
    if value is not None:
        value = value[places // (call.shape[0] // len(value))]
    sums = RowSums(call.sums.table[places], call.sums.queries)
    return replace(call, causes=inputs, sums=sums, value=value, chosen=heads, _cache={})


def image_of(call: Call, axis: str) -> Picture | None:
    """Return the image whose patches are the tokens of an axis, if there is one."""
    return call.query_picture if axis == "queries" else call.key_picture


def image_axes(call: Call) -> list[str]:
    """Return the axes that have an image."""
    return [axis for axis in AXES if image_of(call, axis) is not None]


def image_data(image: Picture, longest: int = LONGEST) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and arrays of an image: its pixels, and the patch index of each token.

    Args:
        image: the image.
        longest: the maximum side in pixels; a larger image is scaled down.
    """
    h, w = image.pixels.shape[:2]
    head = {"rows": image.rows, "columns": image.columns, "assumed": image.assumed,
            "size": [h, w], "before": list(image.before)}  # fmt: skip
    arrays = {"pixels": shrink(image.pixels, longest), "places": image.patch_indices.int()}
    return head, arrays


def image_size(calls: list[Call], room: float) -> int:
    """Return the largest size of `IN_FILE` at which all images fit into `room` bytes, else 0."""
    pictures = [image_of(call, axis) for call in calls for axis in AXES]
    images = {image.pixels.data_ptr(): image.pixels for image in pictures if image is not None}
    for longest in IN_FILE:
        if sum(shrink(image, longest).nbytes for image in images.values()) <= room:
            return longest
    return 0
