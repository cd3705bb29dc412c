"""How much each head attends from each segment of a text to each.

A query is in the segments of the key at its position; in cross-attention, in those of its own text.
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
from heedful.recording.progress import OnProgress, Progress, sub_progress
from heedful.recording.segment_masks import LEARNED, REST, SegmentSpecs, token_masks
from heedful.recording.segment_table import Segments, SegmentShare
from heedful.recording.token_labels import Sides

SOURCE, TARGET, ALL = "source", "target", "all"  # names of a text without segments


class Text(NamedTuple):
    """One of a model's texts: its ids if known, its labels, and its number of tokens."""

    ids: Tensor | None
    labels: list[str] | None
    length: int

    def matches(self, other: Text) -> bool:
        """Return whether ids, or without ids the lengths, are equal."""
        if self.length != other.length or self.ids is None or other.ids is None:
            return self.length == other.length
        return torch.equal(self.ids, other.ids)


class CallTexts(NamedTuple):
    """The text of a call's queries and of its keys: False is the source, True the target.

    mismatch: why its tokens are not those of the texts; empty if they are.
    """

    queries: bool | None
    keys: bool | None
    mismatch: str = ""


def texts_read_by(calls: list[Call], sides: Sides) -> list[CallTexts]:
    """Return the texts of the queries and keys of each call of a pass or a stitched generation."""
    texts, result = _texts(calls, sides), []
    for call in calls:
        queries, keys = _sides(call, sides)
        result.append(CallTexts(queries, keys, _mismatch(call, sides, texts)))
    return result


def segment_masks_of(
    calls: list[Call], sides: Sides, segments: SegmentSpecs, target: SegmentSpecs | None = None
) -> dict[bool, dict[str, Tensor]]:
    """Return a boolean per token for each segment of each text; True is the target."""
    specs = {False: segments, True: target or {}}
    return {
        is_target: token_masks(specs[is_target], text.length, text.labels)
        for is_target, text in _texts(calls, sides).items()
    }


def segments_of_call(
    call: Call, segments: SegmentSpecs, queries: SegmentSpecs | None = None,
    progress: OnProgress | None = None,
) -> Segments:  # fmt: skip
    """Compute the shares of one call; arguments as in `Call.segments`."""
    of_keys = token_masks(segments, call.shape[2], call.key_tokens)
    if queries is not None:
        of_queries = token_masks(queries, call.shape[1], call.query_tokens)
    elif call.is_cross:
        of_queries = {ALL: torch.ones(call.shape[1], dtype=torch.bool, device="cpu")}
    else:
        of_queries = query_masks(call, of_keys)
    if not of_keys and not of_queries:
        raise _no_segments()
    return Segments(_rows(call, call.index, of_queries, of_keys, progress))


def segments_of_calls(
    calls: list[Call], sides: Sides, segments: SegmentSpecs, target: SegmentSpecs | None = None,
    progress: OnProgress | None = None,
) -> Segments:  # fmt: skip
    """Compute the shares of a pass or a stitched generation; arguments as `Sequence.segments`."""
    _check(calls, sides, segments, target)
    masks = segment_masks_of(calls, sides, segments, target)
    for is_target, text in _texts(calls, sides).items():
        if sides.has_cross and not (target if is_target else segments):
            all_tokens = torch.ones(text.length, dtype=torch.bool, device="cpu")
            masks[is_target] = {TARGET if is_target else SOURCE: all_tokens}
    shares = Segments()
    for i, (call, texts) in enumerate(zip(calls, texts_read_by(calls, sides), strict=True)):
        if texts.mismatch:
            shares.left_out[call.name] = texts.mismatch
            continue
        of_keys = masks[bool(texts.keys)]
        of_queries = masks[bool(texts.queries)] if call.is_cross else query_masks(call, of_keys)
        shares += _rows(call, i, of_queries, of_keys, sub_progress(progress, i, len(calls)))
    if not shares:
        name, why = next(iter(shares.left_out.items()))
        raise RunError(
            f"no call has the tokens of the text: in {name}, {why}",
            remedy="use one call: recording[0].segments(…)",
        )
    return shares


def _check(
    calls: list[Call], sides: Sides, segments: SegmentSpecs, target: SegmentSpecs | None
) -> None:
    if not calls:
        raise nothing_recorded()
    if target is not None and not sides.has_cross:
        raise ArgumentError(
            "target= for a model with one text",
            expected="only segments; target= is for encoder–decoders",
        )
    if not segments and not target:
        raise _no_segments()
    passes = len({call.pass_index for call in calls})
    if passes > 1:
        raise RunError(
            f"{passes:,} passes that are not a generation",
            expected="one pass, or the passes of one generation, so that token indices are unique",
            remedy="record one text in a `with` block, or use one call: recording[0].segments(…)",
        )


def _no_segments() -> ArgumentError:
    return ArgumentError("no segment", expected='at least one, as {"question": slice(40, 60)}')


def _sides(call: Call, sides: Sides) -> tuple[bool | None, bool | None]:
    """Return whether queries and keys are of the target; None if unknown."""
    side = sides.is_target(call.name)
    return (True, False) if call.is_cross else (side, side)


def _axes(call: Call, sides: Sides) -> list[tuple[bool | None, Text]]:
    """Return the text of the keys, and in cross-attention of the queries, each with its side."""
    (queries, keys), (_, N, M) = _sides(call, sides), call.shape
    axes = [(keys, Text(call.ids, call.key_tokens, M))]
    if call.is_cross:
        axes.append((queries, Text(call.query_ids, call.query_tokens, N)))
    return axes


def _texts(calls: list[Call], sides: Sides) -> dict[bool, Text]:
    """Return the longest source and target of the calls, preferring texts with ids."""
    axes = [axis for call in calls for axis in _axes(call, sides)]
    texts = {target: [text for side, text in axes if side is target] for target in (False, True)}
    return {
        is_target: max(several, key=lambda text: (text.ids is not None, text.length))
        for is_target, several in texts.items()
        if several
    }


def _mismatch(call: Call, sides: Sides, texts: dict[bool, Text]) -> str:
    """Return why a call's tokens are not those of the texts; empty if they are."""
    for side, text in _axes(call, sides):
        if side is None:
            return "its name does not say whether it reads the source or the target"
        if not text.matches(texts[side]):
            return f"its {text.length:,} tokens are not the {texts[side].length:,} of the text"
    return ""


def query_masks(call: Call, key_masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the segments of the queries, (N,): those of the keys at their positions."""
    _, N, M = call.shape
    positions = torch.arange(N, device="cpu") + call.causes.offset
    is_key = (positions >= 0) & (positions < M)
    positions = positions.clamp(0, max(M - 1, 0))
    return {name: mask[positions] & is_key if M else is_key for name, mask in key_masks.items()}


def with_rest(masks: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """Add the segment of all tokens in no other segment, if there are any."""
    rest = ~_stacked(masks, length).any(dim=0)
    return {**masks, REST: rest} if bool(rest.any()) else masks


def _rows(
    call: Call, index: int, queries: dict[str, Tensor], keys: dict[str, Tensor],
    progress: OnProgress | None,
) -> list[SegmentShare]:  # fmt: skip
    _, N, M = call.shape
    queries = {name: mask for name, mask in with_rest(queries, N).items() if bool(mask.any())}
    keys = with_rest(keys, M)
    statistic = SegmentShares(_stacked(queries, N), _stacked(keys, M))
    numbers = None
    if call.proof != "refuted":  # a refuted call is listed without numbers
        [numbers, *_] = call.gather(statistic, Progress(progress or (lambda share: None)))
    shares = []
    for (h, head), (a, segment) in product(enumerate(call.heads), enumerate(queries)):
        count = 0 if numbers is None else int(numbers.queries[h, a])
        row = SegmentShare(
            call.layer, head, segment, "", None, None, count, 0, index, call.name,
            call.kind, call.pass_index, call.proof, call.layout, call.why,
        )  # fmt: skip
        for b, (to, mask) in enumerate(keys.items()):
            row = row._replace(to=to, keys=int(mask.sum()))
            if numbers is not None and count:
                share, chance = float(numbers.share[h, a, b]), float(numbers.chance[h, a, b])
                row = row._replace(share=share, chance=chance)
            shares.append(row)
        if call.causes.sinks is not None:
            learned = float(numbers.learned[h, a]) if numbers is not None and count else None
            shares.append(row._replace(to=LEARNED, keys=0, share=learned, chance=None))
    return shares


def _stacked(masks: dict[str, Tensor], length: int) -> Tensor:
    if not masks:
        return torch.zeros(0, length, dtype=torch.bool, device="cpu")
    return torch.stack(list(masks.values()))
