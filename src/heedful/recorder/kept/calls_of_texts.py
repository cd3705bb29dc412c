"""Finds of which texts each call of a batch is, by the calls that these texts alone make.

Most models call attention once for a whole batch. Some go through its texts in a loop, one after
the other or a few at a time; then a call has the sequences of some texts, and which these are is
told by nothing but their queries and keys. What of a text is padding is then told by the inputs of
that text alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from heedful.ops.score_tables import ALL
from heedful.recorder.kept.capture import Capture
from heedful.recorder.kept.text_agreement import Difference, OfText, agree, difference
from heedful.recorder.sequences.without_padding import Layout

OTHER_CALLS = Difference("a text alone makes other calls of this module", refutes=False)
# As of images with unequal numbers of windows: then a number is not that of one text alone
UNEQUAL = Difference("the texts have unequal numbers of sequences", refutes=False)


def of_each(captures: list[Capture], texts: list[list[Capture]]) -> list[list[OfText] | None]:
    """For each call of a batch, those of the texts alone that it should consist of, by their order.

    That is the call of the same module and the same number in each; where the module is called once
    for each text, it is the call of one of them. None where the texts alone make other calls.
    """
    counts = Counter(one.name for one in captures)
    before: Counter[str] = Counter()
    found: list[list[OfText] | None] = []
    for name in (one.name for one in captures):
        each = [
            [OfText(b, call) for call in alone] for b, alone in enumerate(_of_module(name, texts))
        ]
        number, in_order = before[name], list(itertools.chain(*each))
        before[name] += 1
        if all(len(one) >= counts[name] for one in each):
            found.append([one[number] for one in each])
        else:
            found.append([in_order[number]] if len(in_order) == counts[name] else None)
    return found


def standing_of(
    capture: Capture, ordered: list[OfText] | None, texts: list[list[Capture]]
) -> Capture | Difference:
    """The call with the sequences that it has, as the texts alone tell; else how it differs.

    Args:
        capture: the call.
        ordered: as `of_each` gives it. Where that does not agree, the call may be of other texts.
        texts: the calls of each text alone.
    """
    each = _of_module(capture.name, texts)
    differs: Difference | None = OTHER_CALLS
    if ordered is not None:
        whole = len(ordered) == len(texts)  # then the inputs of the batch told what is padding
        differs = difference(capture if whole else _as_alone(capture, ordered), ordered)
    found = ordered if differs is None else _only_run(capture, each)
    if found is None:
        return differs or OTHER_CALLS
    start, size = found[0].text, len(capture.query)
    if start and len({len(one.query) for one in itertools.chain(*each)}) > 1:
        return UNEQUAL
    first, batch = (count * size // len(found) for count in (start, len(texts)))
    stands = capture if len(found) == len(texts) else _as_alone(capture, found)
    return replace(stands, first=first, batch=batch)


def _as_alone(capture: Capture, run: list[OfText]) -> Capture:
    """The call without the padding of its texts, which the inputs of each alone tell.

    Those of a batch do not tell it inside a loop: it is not known there which text runs.
    """
    rows = [row for one in run for row in one.sequences]
    if len(rows) != len(capture.query):
        return capture
    pairs = zip(capture.layouts, rows, strict=True)
    layouts = [_cut(layout, capture, one, one.layout(part)) for layout, (_, one, part) in pairs]
    if all(one is whole for one, whole in zip(layouts, capture.layouts, strict=True)):
        return capture
    how = {name: why for _, one in run for name, why in one.inferred.items() if name == "padding"}
    inferred = {**capture.inferred, **how}
    return replace(capture, layouts=layouts, kind=run[0].call.kind, inferred=inferred)


def _cut(whole: Layout, capture: Capture, call: Capture, alone: Layout) -> Layout:
    """The layout of a sequence: that of its text alone, where the call's own mask hides the rest.

    Args:
        whole: the layout that it has.
        capture: the call.
        call: the one of the text alone; alone: its layout there.
    """
    H, N, M = shape = (*capture.query.shape[1:3], capture.key.shape[2])
    sizes = [(len(one.queries), len(one.keys)) for one in (whole, alone)]
    if sizes[0] != (N, M) or sizes[1] == (N, M) or whole.mask is None:
        return whole  # nothing is to be cut, or nothing hides it
    if (*call.query.shape[1:3], call.key.shape[2]) != shape:
        return whole
    # with as many texts as queries, a table of queries × keys may have looked like padding
    asking = ALL if capture.texts == N else alone.queries
    seen = whole.mask.crop(shape, asking)
    if not torch.equal(seen.sum(-1), seen[..., alone.keys.to(seen.device)].sum(-1)):
        return whole
    kept = whole.mask.crop(shape, alone.queries, alone.keys)
    own = kept.new_ones(()) if alone.mask is None else alone.mask.crop((H, *sizes[1]))
    return alone if bool((kept == own.to(kept.device)).all()) else whole


def _only_run(capture: Capture, each: list[list[Capture]]) -> list[OfText] | None:
    """The texts that have the sequences of a call; None where none have, or several do.

    Several do where it has nothing of its text, as of learned queries that ask learned keys.
    """
    found = {
        run[0].text: run for run in _runs(each, len(capture.query)) if _consists_of(capture, run)
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _consists_of(capture: Capture, run: list[OfText]) -> bool:
    """Whether the sequences of a call are those of texts alone, one after the other."""
    rows = [row for one in run for row in one.sequences]
    ours = _as_alone(capture, run)
    pairs = zip(ours.sequences, rows, strict=True)
    return all(agree(ours, sequence, one, part) for sequence, (_, one, part) in pairs)


def _runs(each: list[list[Capture]], size: int) -> Iterator[list[OfText]]:
    """Calls of texts that follow each other, which have so many sequences together."""
    for start, calls in enumerate(each):
        for number in range(len(calls)):
            run, left = [], size
            for text in range(start, len(each)):
                if left <= 0 or number >= len(each[text]):
                    break
                run.append(OfText(text, each[text][number]))
                left -= len(each[text][number].query)
            if run and not left:
                yield run


def _of_module(name: str, texts: list[list[Capture]]) -> list[list[Capture]]:
    """The calls of one module that each text alone makes."""
    return [[call for call in alone if call.name == name] for alone in texts]
