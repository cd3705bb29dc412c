"""Computes how much each head reads of each segment of a text, from each.

In self-attention a query is in the segments of the key at which it stands. In cross-attention
queries and keys are of two texts, each with segments of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops.segments import SegmentShares
from heedful.recording.call import Call
from heedful.recording.checks import nothing_recorded
from heedful.recording.marked import LEARNED, REST, Told, marked
from heedful.recording.progress import Progress, Tell
from heedful.recording.segment_table import Segments, SegmentShare
from heedful.recording.texts import Sides

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
    texts = _texts(calls, sides)
    return [
        Read(
            _side(call, sides, "queries"), _side(call, sides, "keys"), _why_not(call, sides, texts)
        )
        for call in calls
    ]


def marks_of(
    calls: list[Call], sides: Sides, told: Told, target: Told | None = None
) -> dict[bool, dict[str, Tensor]]:
    """Which tokens are in which segment, of each text that there is: True is what is written.

    Raises:
        ArgumentError: segments that are not of the text, as `Sequence.segments` says.
    """
    given = {False: told, True: target or {}}
    return {
        writes: marked(given[writes], one.length, one.labels)
        for writes, one in _texts(calls, sides).items()
    }


def of_call(
    call: Call, told: Told, queries: Told | None = None, progress: Tell | None = None
) -> Segments:
    """The shares of one call; `Call.segments` says what the arguments are."""
    of_keys = marked(told, call.shape[2], call.key_tokens)
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
    calls: list[Call],
    sides: Sides,
    told: Told,
    target: Told | None = None,
    progress: Tell | None = None,
) -> Segments:
    """The shares of all calls of a sequence; `Sequence.segments` says what the arguments are.

    Args:
        calls: of one pass, or of a generation put together.
        sides: of which text a call is.
        told, target, progress: as there.
    """
    _check(calls, sides, told, target)
    marks = marks_of(calls, sides, told, target)
    for writes in marks:
        if sides.crosses and not (target if writes else told):
            every = torch.ones(_text(calls, sides, writes).length, dtype=torch.bool, device="cpu")
            marks[writes] = {TARGET if writes else SOURCE: every}
    read = read_by(calls, sides)
    found = Segments()
    for at, call in enumerate(calls):

        def tell(share: float, at: int = at) -> None:
            if progress is not None:
                progress((at + share) / len(calls))

        reads = read[at]
        if reads.why_not:
            found.left_out[call.name] = reads.why_not
            continue
        of_keys, of_queries = marks[bool(reads.keys)], marks[bool(reads.queries)]
        if not call.crosses:
            of_queries = standing(call, of_keys)
        found += _rows(call, at, of_queries, of_keys, tell)
    if not found:
        name, why = next(iter(found.left_out.items()))
        raise RunError(f"no call is of the text: of {name}, {why}",
                       remedy="ask one call: recording[0].segments(…)")  # fmt: skip
    return found


def _check(calls: list[Call], sides: Sides, told: Told, target: Told | None) -> None:
    if not calls:
        raise nothing_recorded()
    if target is not None and not sides.crosses:
        raise ArgumentError(
            "target= of a model that reads one text",
            expected="segments alone: an encoder–decoder alone has a target too",
        )
    if not told and not target:
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


def _side(call: Call, sides: Sides, axis: str) -> bool | None:
    """Whether an axis of a call is of what the model writes; None where that is not known."""
    return axis == "queries" if call.crosses else sides.writes(call.name)


def _all(calls: list[Call], sides: Sides) -> set[bool | None]:
    return {_side(call, sides, axis) for call in calls for axis in ("keys", "queries")}


def _axis(call: Call, axis: str) -> Text:
    _, N, M = call.shape
    if axis == "keys" or not call.crosses:
        return Text(call.ids, call.key_tokens, M)
    return Text(call.query_ids, call.query_tokens, N)


def _texts(calls: list[Call], sides: Sides) -> dict[bool, Text]:
    """What the model reads, and what it writes, as far as there are calls of it."""
    known = _all(calls, sides)
    return {writes: _text(calls, sides, writes) for writes in (False, True) if writes in known}


def _text(calls: list[Call], sides: Sides, writes: bool) -> Text:
    """The longest text of one side; where a call knows its ids, the longest of those."""
    found = [
        _axis(call, axis)
        for call in calls
        for axis in ("keys", "queries")
        if _side(call, sides, axis) is writes
    ]
    return max(found, key=lambda text: (text.ids is not None, text.length))


def _why_not(call: Call, sides: Sides, texts: dict[bool, Text]) -> str:
    """Why the segments are not of a call's tokens; empty where they are."""
    for axis in ("keys", "queries"):
        side, own = _side(call, sides, axis), _axis(call, axis)
        if side is None:
            return "its name does not say whether it reads the source or the target"
        if not own.is_that_of(texts[side]):
            return f"its {own.length:,} tokens are not the {texts[side].length:,} of the text"
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
    rest = torch.ones(length, dtype=torch.bool, device="cpu")
    for own in marks.values():
        rest &= ~own
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
        told = [] if progress is None else [Progress(progress)]
        numbers, *_ = call.gathered(statistic, *told)
    found = []
    for h, head in enumerate(call.heads):
        for a, one in enumerate(queries):
            asked = 0 if numbers is None else int(numbers.queries[h, a])
            row = SegmentShare(
                call.layer, head, one, "", None, None, asked, 0, at, call.name,
                call.kind, call.pass_index, call.proof, call.layout, call.why,
            )  # fmt: skip
            for b, other in enumerate(keys):
                row = row._replace(to=other, keys=int(keys[other].sum()))
                if numbers is not None and asked:
                    row = row._replace(
                        share=float(numbers.share[h, a, b]), chance=float(numbers.chance[h, a, b])
                    )
                found.append(row)
            if call.causes.sinks is not None:
                learned = None if not asked or numbers is None else float(numbers.learned[h, a])
                found.append(row._replace(to=LEARNED, keys=0, share=learned, chance=None))
    return found


def _stacked(marks: dict[str, Tensor], length: int) -> Tensor:
    if not marks:
        return torch.zeros(0, length, dtype=torch.bool, device="cpu")
    return torch.stack(list(marks.values()))
