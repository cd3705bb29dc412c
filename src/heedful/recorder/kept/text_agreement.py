"""Compares the calls of a batch with those of its texts alone, sequence by sequence.

A text alone has its own queries and keys and no others'. Where a sequence has others, they are
looked for in other texts and heads: found there, the order of the axes that was shown is wrong;
found nowhere, the texts of a batch may change each other, which tells nothing about the order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.causes import Causes, entries_of
from heedful.ops.cells import weights
from heedful.recorder.kept.capture import Capture
from heedful.recorder.kept.evidence import sampled

# How far numbers of a text alone may be from those in a batch, whose kernels round otherwise, in
# units of the largest of them
NEAR = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
ROUNDS = "the first sequences of all texts stand before their second ones"
MIXED = "the one sequence has all texts, which attend to each other in it"
OTHERWISE = "the one sequence has all texts, which have other weights in it than alone"


class Difference(NamedTuple):
    """A difference between a call and those of its texts alone.

    refutes: whether it shows the call to be wrong; else it only leaves something unsettled.
    """

    why: str
    refutes: bool = True


class OfText(NamedTuple):
    """A call of a text alone, and which text it was."""

    text: int
    call: Capture

    @property
    def sequences(self) -> list[tuple[int, Capture, int]]:
        """Each of its sequences: the text, the call, and the number of the sequence in it."""
        return [(self.text, self.call, part) for part in range(len(self.call.query))]


def difference(capture: Capture, alone: list[OfText]) -> Difference | None:
    """The difference between a call's sequences and those of its texts alone; None without one."""
    rows = [row for one in alone for row in one.sequences]
    parts = [one for _, one in alone]
    if len(capture.query) == 1 < len(parts) == len(rows) and _are_joined(capture, parts):
        why = _unlike_alone(capture, parts)
        return Difference(why, refutes=False) if why else None
    if len(rows) != len(capture.query):
        why = f"the texts alone are {len(rows)} sequences, and not {len(capture.query)}"
        # as many numbers in another order were arranged wrongly; others are another call's
        several = [sum(sizes) for sizes in zip(*map(_sizes, parts), strict=True)]
        return Difference(why, several == _sizes(capture))
    if _are_in_rounds(capture, rows, len(alone)):
        return Difference(ROUNDS, refutes=False)
    for place, (b, one, part) in enumerate(rows):
        sequence = capture.first + place
        if agree(capture, sequence, one, part):
            continue
        each = [other.causes(part) for _, other, part in rows]
        if _is_elsewhere(capture.causes(sequence), each, place):
            return Difference(
                f"sequence {sequence} is not of text {b}, which alone has other queries and keys"
            )
        why = f"text {b} alone has other queries and keys, and no other text has those of sequence"
        return Difference(f"{why} {sequence}", refutes=False)
    return None


def _are_in_rounds(capture: Capture, rows: list[tuple[int, Capture, int]], texts: int) -> bool:
    """Whether each text has several sequences, the first ones of all texts before the second ones.

    So they stand where a model joins two batches by `cat`.
    """
    if len(rows) <= texts or len(rows) % texts or texts < 2:
        return False
    each = len(rows) // texts
    turned = [rows[b * each + part] for part in range(each) for b in range(texts)]
    return all(
        agree(capture, capture.first + place, one, part)
        for place, (_, one, part) in enumerate(turned)
    )


def _are_joined(capture: Capture, parts: list[Capture]) -> bool:
    """Whether the one sequence of a call is the texts one after the other, as models of images
    join them: its queries are, and its keys are too, or are the same for each text.
    """
    ours, alone = capture.causes(capture.first), [one.causes(0) for one in parts]
    if any(map(_is_of_weights, (ours, *alone))):  # of which only the numbers are known
        (_, N, M), each = ours.shape, [one.shape for one in alone]
        _, queries, keys = (sum(sizes) for sizes in zip(*each, strict=True))
        return queries == N and (keys == M or all(one[2] == M for one in each))
    if len({(len(one.query), len(one.key)) for one in alone}) > 1:
        return False
    near = _near(capture)
    if not _is_near(_asked(ours), torch.cat([_asked(one) for one in alone], dim=1), near):
        return False
    keys = [one.key for one in alone]
    is_shared = all(_is_near(ours.key, one, near) for one in keys)
    return is_shared or _is_near(ours.key, torch.cat(keys, dim=1), near)


def _unlike_alone(capture: Capture, parts: list[Capture]) -> str:
    """What the texts that one sequence joins do there, and not alone; "" where it is nothing."""
    ours, near = capture.causes(capture.first), _near(capture) / 10
    (H, _, M), each = ours.shape, [part.causes(0) for part in parts]
    is_shared = sum(alone.shape[2] for alone in each) > M  # the keys are the same for all texts
    step, query, key = max(1, entries_of(ours.query) // (H * max(1, M))), 0, 0
    for alone in each:
        _, queries, keys = alone.shape
        for rows in torch.arange(queries, device="cpu").split(step):
            whole = weights(ours, queries=query + rows)
            own = whole.narrow(-1, key, keys)
            if not bool(((whole.sum(dim=-1) - own.sum(dim=-1)) <= near).all()):
                return MIXED
            if not _is_near(own, weights(alone, queries=rows), near):
                return OTHERWISE
        query, key = query + queries, 0 if is_shared else key + keys
    return ""


def _is_elsewhere(ours: Causes, alone: list[Causes], place: int) -> bool:
    """Whether a sequence has the queries and keys of other heads or texts rather than its own.

    Args:
        ours: what is kept of the sequence.
        alone: what is kept of all sequences of the texts alone.
        place: which of these it should be.
    """
    votes = 0
    of_weights = any(map(_is_of_weights, (ours, *alone)))  # for one text, and not for another
    vectors = (_vectors(one, of_weights=of_weights) for one in (ours, *alone))
    for mine, *theirs in zip(*vectors, strict=True):
        mine = mine[:, sampled(mine.shape[1])]
        largest = max((float(one.abs().max()) for one in theirs if one.numel()), default=0.0)
        near = NEAR.get(mine.dtype, 1e-3) * largest
        own = _found(mine, theirs[place], near)
        flat = mine.flatten(0, 1)[None]
        found = torch.cat([_found(flat, one.flatten(0, 1)[None], near) for one in theirs])
        if bool(own.all()) and bool(found.all()):
            continue  # learned keys, say, are those of every text, and tell nothing
        elsewhere = found.any(dim=0).view_as(own) & ~own
        # a few are alike by chance, as the same token at the same place of two texts is
        if int(elsewhere.sum()) < max(int(own.sum()), own.numel() / 2):
            return False
        votes += 1
    return votes > 0


def _is_of_weights(of: Causes) -> bool:
    """Whether only weights are kept of a call, and its queries are a mere place for them."""
    return of.query.shape[-1] == 1


def _asked(of: Causes) -> Tensor:
    """The queries with their scale, which one kernel puts into them, and another into scores."""
    return of.query * of.scale


def _vectors(of: Causes, *, of_weights: bool) -> list[Tensor]:
    """The queries and keys of a sequence, (heads, rows, width), or its weights."""
    return [weights(of)] if of_weights else [_asked(of), of.key]


def _found(vectors: Tensor, among: Tensor, near: float) -> Tensor:
    """Which of the vectors (H, n, d) are among others of their head, (H, m, d)."""
    if len(vectors) != len(among) or vectors.shape[-1] != among.shape[-1]:
        return torch.zeros(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
    apart = torch.cdist(vectors.float(), among.float(), p=math.inf)
    return (apart <= near).any(dim=-1)


def _sizes(capture: Capture) -> list[int]:
    """The number of queries in all sequences and heads of a call, and that of all weights."""
    queries = math.prod(capture.query.shape[:3])
    return [queries, queries * capture.key.shape[2]]


def agree(capture: Capture, sequence: int, alone: Capture, part: int) -> bool:
    """Whether a sequence has the queries, keys or weights that a text alone has."""
    ours, theirs = capture.causes(sequence), alone.causes(part)
    if ours.shape != theirs.shape:
        return False
    N = ours.shape[1]
    near = _near(capture)
    if _is_of_weights(ours) or _is_of_weights(theirs):
        rows = sampled(N)
        one, other = weights(ours, queries=rows), weights(theirs, queries=rows)
        return _is_near(one, other, near / 10)
    return _is_near(_asked(ours), _asked(theirs), near) and _is_near(ours.key, theirs.key, near)


def _near(capture: Capture) -> float:
    """How far numbers of a call may be apart, by the narrower of its types."""
    return max(NEAR.get(one.dtype, 1e-3) for one in (capture.query, capture.key))


def _is_near(one: Tensor, other: Tensor, near: float) -> bool:
    """Whether (H, n, d) are the same numbers, but for what kernels round otherwise.

    What all rows have in common, such as a bias, tells no text from another: it counts little.
    """
    if one.shape != other.shape:
        return False
    if not one.numel():  # of a text that is all padding
        return True
    other = other.to(one.device)  # of which a recording with a budget may have one on the CPU
    own = other - torch.cat([one, other], dim=1).mean(dim=1, keepdim=True)
    size = own.abs().amax() + other.abs().amax() / 10
    return bool((one - other).abs().amax() <= near * size.clamp(min=1e-30))
