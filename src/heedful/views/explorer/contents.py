"""What the page as one file has in it: parts with names, each as `packed` writes it.

Of every call its scores, pooled maps and largest weights, as finely as the room allows, and its
mask where that is short; of every text its tokens. What several calls have in common, such as the
tokens, is written once.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError, RunError
from heedful.recording import Call
from heedful.recording.head_types import evidence
from heedful.recording.progress import Tell
from heedful.views.explorer.answers import LONGEST, Answers, Where
from heedful.views.explorer.images import as_data, longest_in_file, picture_of, pictured
from heedful.views.explorer.masks_in_file import mask_as_data
from heedful.views.explorer.overview import scores_told
from heedful.views.explorer.shares_in_file import shares_in_file
from heedful.views.explorer.summaries import TOP, Summary, plan, summary
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import packed, unpacked

SHORT = 40  # characters of a token where longer ones take too much room
FOR_WORDS = 0.25  # of the room: what tokens may take, what scores may, and what masks may
EACH = 300  # bytes of a call beside its numbers
TRIES = 20


class Kept(NamedTuple):
    """What the file has of one call. `wrong`: why it has nothing."""

    where: Where
    scores: bytes | None = None
    found: Summary | None = None
    wrong: str = ""


class CausesInFile(NamedTuple):
    """What a file has of queries and keys: in which precision, in how many bytes, and how far the
    weights computed from them are from the recording's, in so many rows."""

    half: bool
    bytes: int
    difference: float
    rows: int


class Parts:
    """Parts of a file, and numbers of those that are written once, however many ask for them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._known: dict[bytes, int] = {}

    def add(self, name: str, head: dict[str, Any] | None = None, **arrays: Tensor) -> None:
        """One more part."""
        self.parts.append(packed({"part": name, **(head or {})}, **arrays))

    def share(self, head: dict[str, Any] | None = None, **arrays: Tensor) -> int:
        """The number of a part that may be there already."""
        digest = hashlib.blake2b(packed(head or {}, **arrays)).digest()
        if digest not in self._known:
            self._known[digest] = len(self._known)
            self.add(f"shared {self._known[digest]}", head, **arrays)
        return self._known[digest]


def deflated(parts: Iterable[bytes]) -> bytes:
    """Parts one after the other, each behind its length, deflated."""
    made = zlib.compressobj(6)
    pieces = [made.compress(struct.pack("<I", len(part)) + part) for part in parts]
    return b"".join(pieces) + made.flush()


def places(texts: Texts) -> list[tuple[Where, Call]]:
    """Every call with its numbers."""
    return [
        ((r, t, c), texts.call(r, t, c))
        for r, recording in enumerate(texts.about())
        for t, text in enumerate(recording["texts"])
        for c in range(len(text["calls"]))
    ]


def contents(
    texts: Texts, room: int, progress: Tell, causes: CausesInFile | None = None
) -> tuple[bytes, str]:
    """Everything but the causes, deflated, in no more bytes than there is room for.

    Args:
        texts: what is shown.
        room: in bytes.
        progress: is told of the share that is done, 0 to 1.
        causes: what the file has of query and key; the largest weights of rows are then left out.

    Returns:
        the bytes, and in words what of the weights is in them.

    Raises:
        RunError: more calls than there is room for.
    """
    calls = places(texts)
    common = _common(calls, room)
    marked = list(shares_in_file(texts, [where for where, _ in calls], lambda x: progress(x / 3)))
    common.parts += marked
    ahead = 1 / 3 if marked else 0.0
    left = room - len(deflated(common.parts)) - EACH * len(calls)
    told_of = lambda share: progress(ahead + (1 - ahead) * share)  # noqa: E731
    kept = list(_kept(texts, calls, max(0, left), causes is None, told_of))
    for attempt in range(TRIES):
        told = said(calls, kept, causes)
        data = deflated([*common.parts, *_of_calls(kept), _about(texts, told, causes)])
        if len(data) <= room:
            return data, told
        share = 0.0 if attempt == TRIES - 1 else 0.98 * room / len(data)
        kept = [_with_fewer_rows(one, share) for one in kept]
    raise RunError(
        f"{len(calls):,} calls of {sum(call.shape[0] for _, call in calls):,} heads in one file",
        expected=f"no more than fit into {room * 4 / 3e6:.0f} MB",
        remedy="choose some, with --layers and --heads",
    )


def _common(calls: list[tuple[Where, Call]], room: int) -> Parts:
    """Tokens and masks."""
    parts = Parts()
    longest = _longest([call for _, call in calls], FOR_WORDS * room)
    side = longest_in_file([call for _, call in calls], FOR_WORDS * room)
    for where, call in calls:
        masks, arrays = mask_as_data(call)
        about: dict[str, Any] = {
            "queries": _tokens(parts, call.query_tokens, longest),
            "keys": _tokens(parts, call.key_tokens, longest),
            "images": {axis: _image(parts, call, axis, side) for axis in pictured(call)},
        }
        if sum(array.nbytes for array in arrays.values()) < FOR_WORDS * room / len(calls):
            about["mask"] = masks
            about["arrays of the mask"] = parts.share({}, **arrays) if arrays else None
        parts.add(f"common {_name(where)}", about)
    return parts


def _longest(calls: list[Call], room: float) -> int:
    """How many characters of a token there is room for."""
    texts = {id(names): names for call in calls for names in (call.query_tokens, call.key_tokens)}
    whole = max((len(name) for names in texts.values() for name in names or []), default=0)
    for longest in (whole, LONGEST, SHORT, 8):
        parts = Parts()
        for names in texts.values():
            _tokens(parts, names, longest)
        if len(deflated(parts.parts)) <= room:
            return longest
    return 0


def _tokens(parts: Parts, names: list[str] | None, longest: int) -> int | None:
    """The number of the part that has the tokens of an axis; None where there are none."""
    if names is None or not longest:
        return None
    lengths = {i: len(name) for i, name in enumerate(names) if len(name) > longest}
    return parts.share({"tokens": [name[:longest] for name in names], "cut": lengths})


def _image(parts: Parts, call: Call, axis: str, side: int) -> int | None:
    """The number of the part that has the picture under an axis; None where there is no room."""
    picture = picture_of(call, axis)
    if picture is None or not side:
        return None
    head, arrays = as_data(picture, side)
    return parts.share(head, **arrays)


def _kept(
    texts: Texts, calls: list[tuple[Where, Call]], room: float, single: bool, progress: Tell
) -> Iterator[Kept]:
    """What is kept of each call; its room is in proportion to its rows."""
    rows = sum(_rows(call) for _, call in calls)
    weights = sum(call.shape[0] * call.shape[1] * call.shape[2] for _, call in calls)
    heads = sum(call.shape[0] for _, call in calls)
    has_scores = heads * 40 < FOR_WORDS * room
    done = 0.0
    for where, call in calls:
        share = call.shape[0] * call.shape[1] * call.shape[2] / max(1, weights)

        def tell(part: float, done: float = done, share: float = share) -> None:
            progress(min(1.0, done + share * part))

        wanted = plan(call, (room - has_scores * heads * 40) * _rows(call) / max(1, rows))
        if not single:
            wanted = replace(wanted, rows=torch.arange(0, device="cpu"))
        try:
            scores = _scores(texts, where, lambda part: tell(part / 2)) if has_scores else None
            yield Kept(where, scores, summary(call, wanted, lambda part: tell((1 + part) / 2)))
        except HeedfulError as error:  # what was not recorded truthfully shows no number
            yield Kept(where, wrong=" ".join(str(error).split()))
        done += share
    progress(1.0)


def _scores(texts: Texts, where: Where, progress: Tell) -> bytes:
    """The part with the scores of a call, from one pass over all of its heads."""
    call, even = texts.scored(*where)
    kinds, numbers = scores_told(call, evidence(call, even, progress))
    return packed({"part": f"scores {_name(where)}", "word": "exact", "kinds": kinds}, **numbers)


def _with_fewer_rows(kept: Kept, share: float) -> Kept:
    if kept.found is None:
        return kept
    return kept._replace(found=kept.found.with_rows(int(len(kept.found.plan.rows) * share)))


def _of_calls(kept: list[Kept]) -> Iterator[bytes]:
    for where, scores, found, wrong in kept:
        if scores is not None:
            yield scores
        if found is None:
            yield packed({"part": f"maps {_name(where)}", "wrong": wrong})
        else:
            head = {"cell": found.plan.cell, "half": found.plan.half}
            yield packed({"part": f"maps {_name(where)}", **head}, **found.arrays())


def _about(texts: Texts, told: str, causes: CausesInFile | None) -> bytes:
    """All recordings, and what the file has of them in words."""
    about, _ = unpacked(Answers(texts).about())
    file: dict[str, Any] = {"said": told}
    if causes is not None:
        file |= {"half": causes.half, "difference": causes.difference}
    return packed({"part": "about", **about, "file": file})


def said(
    calls: list[tuple[Where, Call]], kept: list[Kept], causes: CausesInFile | None = None
) -> str:
    """What of the weights the file has, in a sentence or two."""
    lacking = sum(one.found is None for one in kept)
    if lacking:
        left = [pair for pair in zip(calls, kept, strict=True) if pair[1].found is not None]
        rest = said([call for call, _ in left], [one for _, one in left], causes) if left else ""
        return f"{lacking} of {len(kept)} calls cannot be shown; the page says why. {rest}".strip()
    plans = [
        (one.found.plan, call) for one, (_, call) in zip(kept, calls, strict=True) if one.found
    ]
    maps = _maps_said({plan.cell for plan, _ in plans})
    if all(plan.cell == 1 for plan, _ in plans):
        every = "Every weight is in this file"
        every += ", in half precision" if any(plan.half for plan, _ in plans) else ""
        return f"{every}." if causes is None else f"{every}, {_causes_said(causes)}."
    if causes is not None:
        return f"This file has {maps}, {_causes_said(causes)}. What is finer is computed here."
    some = min(len(plan.rows) / max(1, call.shape[1]) for plan, call in plans)
    which = "every row" if some >= 1 else f"evenly chosen rows, {some:.0%} of them"
    if not some:
        return f"This file has {maps}. The recording has every weight."
    return (
        f"This file has {maps}, and exactly the {TOP} largest weights of {which}. "
        "The recording has every weight."
    )


def _maps_said(cells: set[int]) -> str:
    most = max(cells, default=1)
    return f"maps pooled to cells of {'up to ' * (len(cells) > 1)}{most} × {most} weights"


def _causes_said(causes: CausesInFile) -> str:
    if not causes.half:
        return "with the queries and keys that made them"
    return (
        f"and {causes.bytes / 1e6:,.1f} MB of queries and keys in half precision: weights computed "
        f"from them are within {_rounded_up(causes.difference)} of the recording's in the "
        f"{causes.rows:,} rows that were compared"
    )


def _rounded_up(difference: float) -> str:
    """One digit, and never less than it is."""
    if not difference:
        return "0"
    digit = 10.0 ** math.floor(math.log10(difference))
    return f"{math.ceil(difference / digit) * digit:.1g}"


def _rows(call: Call) -> int:
    return call.shape[0] * call.shape[1]


def _name(where: Where) -> str:
    return ".".join(map(str, where))
