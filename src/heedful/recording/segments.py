"""Computes how much each head reads of each segment of a text, from each.

A query is in the segments of the key at which it stands; in cross-attention in those of its text.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops.segments import SegmentShares
from heedful.recording.call import Call
from heedful.recording.checks import nothing_recorded
from heedful.recording.progress import Progress, Tell, within
from heedful.recording.segment_masks import LEARNED, REST, Told, marked
from heedful.recording.segment_table import Segments, SegmentShare
from heedful.recording.token_labels import Sides

SOURCE, TARGET, ALL = "source", "target", "all"  # a text of which nothing is marked


class Text(NamedTuple):
    """One of the texts that a model reads: its ids, where known, labels, and how many tokens."""

    ids: Tensor | None
    labels: list[str] | None
    length: int

    def is_that_of(self, other: Text) -> bool:
        """Whether the tokens are the same, as far as anything is known of them."""
        if self.length != other.length or self.ids is None or other.ids is None:
            return self.length == other.length
        return torch.equal(self.ids, other.ids)


class Read(NamedTuple):
    """Which text's tokens a call's queries and keys are: True is what the model writes.

    why_not: why they are the tokens of neither; empty where they are.
    """

    queries: bool | None
    keys: bool | None
    why_not: str = ""


def read_by(calls: list[Call], sides: Sides) -> list[Read]:
    """Which of the texts each call reads, of one pass or of a generation put together."""
    texts, reads = _texts(calls, sides), []
    for call in calls:
        queries, keys = _sides(call, sides)
        reads.append(Read(queries, keys, _why_not(call, sides, texts)))
    return reads


def marks_of(
    calls: list[Call], sides: Sides, segments: Told, target: Told | None = None
) -> dict[bool, dict[str, Tensor]]:
    """Which tokens are in which segment, of each text that there is: True is what is written."""
    by_text = {False: segments, True: target or {}}
    return {
        writes: marked(by_text[writes], text.length, text.labels)
        for writes, text in _texts(calls, sides).items()
    }


def of_call(
    call: Call, segments: Told, queries: Told | None = None, progress: Tell | None = None
) -> Segments:
    """The shares of one call; `Call.segments` says what the arguments are."""
    of_keys = marked(segments, call.shape[2], call.key_tokens)
    if queries is not None:
        of_queries = marked(queries, call.shape[1], call.query_tokens)
    elif call.crosses:
        of_queries = {ALL: torch.ones(call.shape[1], dtype=torch.bool, device="cpu")}
    else:
        of_queries = standing(call, of_keys)
    if not of_keys and not of_queries:
        raise _no_segments()
    return Segments(_rows(call, call.index, of_queries, of_keys, progress))


def of_calls(
    calls: list[Call], sides: Sides, segments: Told, target: Told | None = None,
    progress: Tell | None = None,
) -> Segments:  # fmt: skip
    """The shares of calls of one pass, or of a generation; arguments as of `Sequence.segments`."""
    _check(calls, sides, segments, target)
    marks = marks_of(calls, sides, segments, target)
    for writes, text in _texts(calls, sides).items():
        if sides.crosses and not (target if writes else segments):
            every = torch.ones(text.length, dtype=torch.bool, device="cpu")
            marks[writes] = {TARGET if writes else SOURCE: every}
    shares = Segments()
    for at, (call, reads) in enumerate(zip(calls, read_by(calls, sides), strict=True)):
        if reads.why_not:
            shares.left_out[call.name] = reads.why_not
            continue
        of_keys = marks[bool(reads.keys)]
        of_queries = marks[bool(reads.queries)] if call.crosses else standing(call, of_keys)
        shares += _rows(call, at, of_queries, of_keys, within(progress, at, len(calls)))
    if not shares:
        name, why = next(iter(shares.left_out.items()))
        raise RunError(
            f"no call is of the text: of {name}, {why}",
            remedy="ask one call: recording[0].segments(…)",
        )
    return shares


def _check(calls: list[Call], sides: Sides, segments: Told, target: Told | None) -> None:
    if not calls:
        raise nothing_recorded()
    if target is not None and not sides.crosses:
        raise ArgumentError(
            "target= of a model that reads one text",
            expected="segments alone: an encoder–decoder alone has a target too",
        )
    if not segments and not target:
        raise _no_segments()
    passes = len({call.pass_index for call in calls})
    if passes > 1:
        raise RunError(
            f"{passes:,} passes that are no generation",
            expected="one pass, or the passes of one generation, so that tokens have one number",
            remedy="record one text in a `with` block, or ask one call: recording[0].segments(…)",
        )


def _no_segments() -> ArgumentError:
    return ArgumentError("no segment", expected='at least one, as {"question": slice(40, 60)}')


def _sides(call: Call, sides: Sides) -> tuple[bool | None, bool | None]:
    """Whether queries and keys are of what the model writes; None where that is not known."""
    side = sides.writes(call.name)
    return (True, False) if call.crosses else (side, side)


def _axes(call: Call, sides: Sides) -> list[tuple[bool | None, Text]]:
    """The text of the keys, and in cross-attention of the queries, each with its side."""
    (queries, keys), (_, N, M) = _sides(call, sides), call.shape
    axes = [(keys, Text(call.ids, call.key_tokens, M))]
    if call.crosses:
        axes.append((queries, Text(call.query_ids, call.query_tokens, N)))
    return axes


def _texts(calls: list[Call], sides: Sides) -> dict[bool, Text]:
    """The longest text that is read, and that is written; of those with ids, where any has them."""
    axes = [axis for call in calls for axis in _axes(call, sides)]
    texts = {writes: [text for side, text in axes if side is writes] for writes in (False, True)}
    return {
        writes: max(several, key=lambda text: (text.ids is not None, text.length))
        for writes, several in texts.items()
        if several
    }


def _why_not(call: Call, sides: Sides, texts: dict[bool, Text]) -> str:
    """Why the segments are not of a call's tokens; empty where they are."""
    for side, text in _axes(call, sides):
        if side is None:
            return "its name does not say whether it reads the source or the target"
        if not text.is_that_of(texts[side]):
            return f"its {text.length:,} tokens are not the {texts[side].length:,} of the text"
    return ""


def standing(call: Call, marks: dict[str, Tensor]) -> dict[str, Tensor]:
    """The segments of the queries, (N,): those of the keys at which they stand."""
    _, N, M = call.shape
    stands = torch.arange(N, device="cpu") + call.causes.offset
    is_key = (stands >= 0) & (stands < M)
    at = stands.clamp(0, max(M - 1, 0))
    return {name: own[at] & is_key if M else is_key for name, own in marks.items()}


def with_rest(marks: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """With what is in no segment, if there is any."""
    rest = ~_stacked(marks, length).any(dim=0)
    return {**marks, REST: rest} if bool(rest.any()) else marks


def _rows(
    call: Call, at: int, queries: dict[str, Tensor], keys: dict[str, Tensor], progress: Tell | None
) -> list[SegmentShare]:
    _, N, M = call.shape
    queries = {name: own for name, own in with_rest(queries, N).items() if bool(own.any())}
    keys = with_rest(keys, M)
    statistic = SegmentShares(_stacked(queries, N), _stacked(keys, M))
    numbers = None
    if call.proof != "refuted":  # one that is keeps its place, and shows no number
        [numbers, *_] = call.gathered(statistic, Progress(progress or (lambda share: None)))
    shares = []
    for (h, head), (a, segment) in product(enumerate(call.heads), enumerate(queries)):
        count = 0 if numbers is None else int(numbers.queries[h, a])
        row = SegmentShare(
            call.layer, head, segment, "", None, None, count, 0, at, call.name,
            call.kind, call.pass_index, call.proof, call.layout, call.why,
        )  # fmt: skip
        for b, (to, marks) in enumerate(keys.items()):
            row = row._replace(to=to, keys=int(marks.sum()))
            if numbers is not None and count:
                share, chance = float(numbers.share[h, a, b]), float(numbers.chance[h, a, b])
                row = row._replace(share=share, chance=chance)
            shares.append(row)
        if call.causes.sinks is not None:
            learned = float(numbers.learned[h, a]) if numbers is not None and count else None
            shares.append(row._replace(to=LEARNED, keys=0, share=learned, chance=None))
    return shares


def _stacked(marks: dict[str, Tensor], length: int) -> Tensor:
    if not marks:
        return torch.zeros(0, length, dtype=torch.bool, device="cpu")
    return torch.stack(list(marks.values()))
