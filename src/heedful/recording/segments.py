"""The shares of attention of each head, from each segment of queries to each segment of keys.

In self-attention, a query is in the same segments as the key at its position. In cross-attention,
queries and keys have different texts, so each axis has the segments of its text.
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

SOURCE, TARGET, ALL = "source", "target", "all"  # segments of all tokens, if none are passed


class Text(NamedTuple):
    """The source or the target of a model: its token ids (T,) if known, its token names, and T."""

    ids: Tensor | None
    labels: list[str] | None
    length: int

    def matches(self, other: Text) -> bool:
        """Return whether two texts have equal lengths and ids; ids count only if both are known."""
        if self.length != other.length or self.ids is None or other.ids is None:
            return self.length == other.length
        return torch.equal(self.ids, other.ids)


class CallTexts(NamedTuple):
    """Whether a call's queries and keys are of the target (else the source); None if unknown.

    mismatch: why the tokens of the call differ from those of its text; empty if they are equal.
    """

    queries_are_target: bool | None
    keys_are_target: bool | None
    mismatch: str = ""


def texts_read_by(calls: list[Call], sides: Sides) -> list[CallTexts]:
    """Return the sides of the queries and keys of each call of a pass or a stitched generation."""
    texts = _texts_by_side(calls, sides)
    return [CallTexts(*_axis_sides(call, sides), _mismatch(call, sides, texts)) for call in calls]


def segment_masks_of(
    calls: list[Call], sides: Sides, segments: SegmentSpecs, target: SegmentSpecs | None = None
) -> dict[bool, dict[str, Tensor]]:
    """Return the masks (T,) of the segments of the source (False) and of the target (True)."""
    specs = {False: segments, True: target or {}}
    return {
        is_target: token_masks(specs[is_target], text.length, text.labels)
        for is_target, text in _texts_by_side(calls, sides).items()
    }


def segments_of_call(
    call: Call, segments: SegmentSpecs, queries: SegmentSpecs | None = None,
    progress: OnProgress | None = None,
) -> Segments:  # fmt: skip
    """Compute the shares of one call; arguments as in `Call.segments`."""
    key_segments = token_masks(segments, call.shape[2], call.key_tokens)
    if queries is not None:
        query_segments = token_masks(queries, call.shape[1], call.query_tokens)
    elif call.is_cross:
        query_segments = {ALL: torch.ones(call.shape[1], dtype=torch.bool, device="cpu")}
    else:
        query_segments = query_masks(call, key_segments)
    if not key_segments and not query_segments:
        raise _no_segments()
    return Segments(_shares(call, call.index, query_segments, key_segments, progress))


def segments_of_calls(
    calls: list[Call], sides: Sides, segments: SegmentSpecs, target: SegmentSpecs | None = None,
    progress: OnProgress | None = None,
) -> Segments:  # fmt: skip
    """Compute the shares of a pass or stitched generation; arguments as in `Sequence.segments`."""
    _check_arguments(calls, sides, segments, target)
    masks = segment_masks_of(calls, sides, segments, target)
    for is_target, text in _texts_by_side(calls, sides).items():
        if sides.has_cross and not (target if is_target else segments):
            all_tokens = torch.ones(text.length, dtype=torch.bool, device="cpu")
            masks[is_target] = {TARGET if is_target else SOURCE: all_tokens}
    shares = Segments()
    for i, (call, texts) in enumerate(zip(calls, texts_read_by(calls, sides), strict=True)):
        if texts.mismatch:
            shares.left_out[call.name] = texts.mismatch
            continue
        keys, queries = masks[bool(texts.keys_are_target)], masks[bool(texts.queries_are_target)]
        queries = queries if call.is_cross else query_masks(call, keys)
        shares += _shares(call, i, queries, keys, sub_progress(progress, i, len(calls)))
    if not shares:
        name, why = next(iter(shares.left_out.items()))
        raise RunError(
            f"no call attends over the full text: in {name}, {why}",
            remedy="use one call: recording[0].segments(…)",
        )
    return shares


def _check_arguments(
    calls: list[Call], sides: Sides, segments: SegmentSpecs, target: SegmentSpecs | None
) -> None:
    if not calls:
        raise nothing_recorded()
    if target is not None and not sides.has_cross:
        raise ArgumentError(
            "target= for a model with one text",
            expected="only `segments`, since only an encoder–decoder has a target",
        )
    if not segments and not target:
        raise _no_segments()
    passes = len({call.pass_index for call in calls})
    if passes > 1:
        raise RunError(
            f"{passes:,} passes that are not one generation",
            expected="one pass, or all passes of one generation, which can be stitched",
            remedy="record one text in a `with` block, or use one call: recording[0].segments(…)",
        )


def _no_segments() -> ArgumentError:
    return ArgumentError("no segment", expected='at least one, as {"question": slice(40, 60)}')


def _axis_sides(call: Call, sides: Sides) -> tuple[bool | None, bool | None]:
    """Return whether the queries, and the keys, belong to the target; None if unknown."""
    is_target = sides.is_target(call.name)
    return (True, False) if call.is_cross else (is_target, is_target)


def _axis_texts(call: Call, sides: Sides) -> list[tuple[bool | None, Text]]:
    """Return the text of the keys with its side; in cross-attention, also that of the queries."""
    (queries_are_target, keys_are_target), (_, N, M) = _axis_sides(call, sides), call.shape
    axes = [(keys_are_target, Text(call.ids, call.key_tokens, M))]
    if call.is_cross:
        axes.append((queries_are_target, Text(call.query_ids, call.query_tokens, N)))
    return axes


def _texts_by_side(calls: list[Call], sides: Sides) -> dict[bool, Text]:
    """Return the longest source (False) and target (True) of the calls; prefer texts with ids."""
    axes = [axis for call in calls for axis in _axis_texts(call, sides)]
    texts = {target: [text for side, text in axes if side is target] for target in (False, True)}
    return {
        is_target: max(candidates, key=lambda text: (text.ids is not None, text.length))
        for is_target, candidates in texts.items()
        if candidates
    }


def _mismatch(call: Call, sides: Sides, texts: dict[bool, Text]) -> str:
    """Return why a call's tokens differ from those of its text; empty if they are equal."""
    for is_target, text in _axis_texts(call, sides):
        if is_target is None:
            return "its name does not show whether it reads the source or the target"
        if not text.matches(texts[is_target]):
            return f"its {text.length:,} tokens are not the {texts[is_target].length:,} of the text"
    return ""


def query_masks(call: Call, key_masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return masks (N,) of the queries: a query is in a segment if the key at its position is."""
    _, N, M = call.shape
    positions = torch.arange(N, device="cpu") + call.causes.offset
    is_key = (positions >= 0) & (positions < M)
    positions = positions.clamp(0, max(M - 1, 0))
    return {name: mask[positions] & is_key if M else is_key for name, mask in key_masks.items()}


def with_rest(masks: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """Add the segment "rest" of all tokens that are in no segment, if there are any."""
    rest = ~_stacked(masks, length).any(dim=0)
    return {**masks, REST: rest} if bool(rest.any()) else masks


def _shares(
    call: Call, index: int, queries: dict[str, Tensor], keys: dict[str, Tensor],
    progress: OnProgress | None,
) -> list[SegmentShare]:  # fmt: skip
    """Compute the shares of one call; `queries` and `keys` are the masks of the segments."""
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
        for b, (key_segment, mask) in enumerate(keys.items()):
            row = row._replace(to=key_segment, keys=int(mask.sum()))
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
