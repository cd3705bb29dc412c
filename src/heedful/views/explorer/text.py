"""One text that a page may show: its calls, the segments marked in it, the picture under it."""

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
from heedful.recording.head_scores import Even
from heedful.recording.heads import with_sure_ids
from heedful.recording.image_patches import Picture
from heedful.recording.pixels import limited
from heedful.recording.row_sums import RowSums
from heedful.recording.segment_masks import Told
from heedful.recording.segments import SOURCE, TARGET, Read, marks_of, read_by
from heedful.recording.token_labels import Sides

SIDES = {False: SOURCE, True: TARGET}  # what is read, and what is written
AXES = ("queries", "keys")
LONGEST = 1024  # pixels of a side that are sent; a page has room for no more
IN_FILE = (512, 256, 128, 64)  # of an image in the one file: the largest that there is room for


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
        places = [next(at for at, one in rest if is_same(one, call)) for call in calls]
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


def texts_of(recording: Recording) -> list[Text]:
    """The texts of a recording with their parts; a generation of many passes also as one."""
    found = []
    sequences = recording.sequences
    several = len(sequences) > 1
    for number, sequence in enumerate(sequences):
        name = f"text {number + 1}" if several else "the text"
        code = f"recording.sequences[{number}]" if several else "recording"
        parts = sequence.parts
        if len({call.pass_index for call in sequence}) > 1:
            with suppress(HeedfulError):
                as_one = recording.stitched(number)
                stitched = f"recording.stitched({number})"
                prompt = _prompt(list(sequence))
                found.append(
                    Text(f"{name}, as one", as_one, stitched, prompt, sides=sequence.sides)
                )
            name = f"{name}, pass by pass"
        for at, part in enumerate(parts):
            if not len(part):  # of a text whose calls are not known to be its own
                continue
            if len(parts) > 1:
                own = f"{name}, part {at + 1}", list(part), f"{code}.parts[{at}]"
            else:
                own = name, list(part), code
            found.append(Text(*own, sides=part.sides))
    return found


def runs_of(own: Tensor) -> list[list[int]]:
    """The runs of neighbours among the tokens of a segment, [first, end)."""
    edges = torch.nn.functional.pad(own.int(), (1, 1)).diff().nonzero()[:, 0]
    return edges.view(-1, 2).tolist()


def _prompt(calls: list[Call]) -> int | None:
    """How many tokens the first pass of a generation was given."""
    first = min(call.pass_index for call in calls)
    own = (call for call in calls if call.pass_index == first and call.kind == "causal")
    return next((call.shape[2] for call in own), None)


def is_same(one: Call, other: Call) -> bool:
    """Whether two calls are the same, of whichever heads."""
    mine, others = (
        (call.name, call.index, call.pass_index, call.sequence, call.part, call.shape[1:])
        for call in (one, other)
    )
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
        "layout": call.layout,
        "why": call.why,
        "heads": call.heads,
        "shape": [H, N, M],
        "first": call.causes.offset,
        "named": call.key_tokens is not None,
        "pictured": pictured(call),
    }


def chosen(
    calls: list[Call], layers: Iterable[int] | None = None, heads: Iterable[int] | None = None
) -> list[Call]:
    """The calls of some layers, each with some of its heads.

    Args:
        calls: of one text.
        layers, heads: the model's numbers, from 0; default all. A call that has none of the heads
            is left out, as layers need not have as many.

    Raises:
        ArgumentError: a layer or a head that no call has.
    """
    if layers is not None:
        _check(layers, {call.layer for call in calls if call.layer is not None}, "layer")
        calls = [call for call in calls if call.layer in set(layers)]
    if heads is None:
        return calls
    _check(heads, {head for call in calls for head in call.heads}, "head")
    found = [(call, [head for head in call.heads if head in set(heads)]) for call in calls]
    return [_of_heads(call, own) for call, own in found if own]


def _check(numbers: Iterable[int], known: set[int], what: str) -> None:
    for number in numbers:
        if number not in known:
            run = sorted(known)
            whole = len(run) > 1 and run == list(range(run[0], run[-1] + 1))
            listed = f"{run[0]} to {run[-1]}" if whole else ", ".join(map(str, run))
            raise ArgumentError(f"{what} {number}", expected=f"one of {what}s {listed or 'none'}")


def _of_heads(call: Call, heads: list[int]) -> Call:
    """The same call with some heads alone, each with a key of its own."""
    if heads == call.heads:
        return call
    places = torch.tensor([call.heads.index(head) for head in heads], device="cpu")
    value = call.value
    if value is not None:
        value = value[places // (call.shape[0] // len(value))]
    of = call.causes
    of = of._replace(
        query=of.query[places],
        key=of.key[places // (len(of.query) // len(of.key))],
        mask=None if of.mask is None else of.mask.of_heads(places),
        bias=of.bias[places]
        if of.bias is not None and of.bias.ndim == 3 and len(of.bias) > 1
        else of.bias,
        sinks=None if of.sinks is None else of.sinks[places],
    )
    sums = RowSums(call.sums.table[places], call.sums.queries)
    return replace(call, causes=of, sums=sums, value=value, chosen=heads, _kept={})


def picture_of(call: Call, axis: str) -> Picture | None:
    """What lies under an axis, where it has patches and no words."""
    return call.query_picture if axis == "queries" else call.key_picture


def pictured(call: Call) -> list[str]:
    """The axes that have a picture."""
    return [axis for axis in AXES if picture_of(call, axis) is not None]


def as_data(picture: Picture, longest: int = LONGEST) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A picture as a head and arrays: its pixels, and for each token the number of its patch.

    Args:
        picture: what is sent.
        longest: pixels of a side; a larger image is made smaller, and its own size is told.
    """
    h, w = picture.pixels.shape[:2]
    head = {"rows": picture.rows, "columns": picture.columns, "assumed": picture.assumed,
            "size": [h, w], "before": list(picture.before)}  # fmt: skip
    arrays = {"pixels": limited(picture.pixels, longest), "places": picture.places.int()}
    return head, arrays


def longest_in_file(calls: list[Call], room: float) -> int:
    """How many pixels a side of each image may have, so that all fit into so many bytes, or 0."""
    found = [picture_of(call, axis) for call in calls for axis in AXES]
    images = {one.pixels.data_ptr(): one.pixels for one in found if one is not None}
    for longest in IN_FILE:
        if sum(limited(one, longest).nbytes for one in images.values()) <= room:
            return longest
    return 0
