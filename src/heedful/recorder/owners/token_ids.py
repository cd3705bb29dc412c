"""Which tokens stand at the queries and keys of a call, from pass to pass.

A pass over a whole text is given the ids of all its tokens. One with a cache is given those of its
queries alone: the others were given in the passes before. In an encoder–decoder the queries of
cross-attention are the tokens that the decoder was given, the keys those of the latest text that
the encoder read, which may have been in a pass of its own.

B texts, N queries, M keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.recorder.observed import Observed
from heedful.recorder.owners.inputs import Inputs
from heedful.recording.real_tokens import RealTokens, distinct

SAME = 1e-3  # of the largest number of a key: those of other tokens are further away


class Ids(NamedTuple):
    """The ids of a call's tokens; None where they are not known.

    keys: (B, L), those of the keys; of the queries alone where a pass with a cache does not go on
        from the pass before it. The last N are those of the queries.
    queries: (B, L), in cross-attention; the last N are those of the queries.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None


class Given(NamedTuple):
    """What a pass tells of the tokens of a call, (texts, L).

    asking: the ids of the tokens that its queries are among. answering: those of its keys, if it is
        cross-attention. writes: whether a decoder runs, in a model that has an encoder too.
        number: of the pass, or of the call of that model in it.
    """

    asking: Tensor | None
    answering: Tensor | None
    writes: bool
    number: int


def given_by(inputs: Inputs, writes: bool) -> Given:
    """What arguments tell of the tokens, by the names that they have."""
    # of what reads, the keys may be of an image
    answering = inputs.ids(False, named=True) if writes else None
    return Given(inputs.ids(writes), answering, writes, inputs.number)


class _Side(NamedTuple):
    """What one side of a model was given: before its latest pass, and up to its end, (B, L).

    keys: (B, L, d), those of a head of the first call of that pass, by which a text is known again;
        None where the call has other rows than there are texts.
    is_one: False where another text was read just before, and none of the two was asked yet.
    """

    number: int
    before: Tensor | None
    so_far: Tensor
    keys: Tensor | None
    is_one: bool = True


class TokenIds:
    """Knows the tokens of each side of a model, those that it reads and those that it writes."""

    def __init__(self) -> None:
        self._sides: dict[bool, _Side] = {}
        self._has_asked = True  # whether what was read last has been asked

    def of(self, seen: Observed, given: Given, tokens: list[RealTokens]) -> Ids:
        """The ids of a call, whose keys are tokens that the model was given."""
        if seen.cross:
            return self._of_cross(seen, given)
        ids = given.asking
        return Ids() if ids is None else Ids(self._of_self(seen, given, ids, tokens))

    def _of_self(
        self, seen: Observed, given: Given, ids: Tensor, tokens: list[RealTokens]
    ) -> Tensor | None:
        N, M = seen.shape[2:]
        length = ids.shape[1]
        if length not in (N, M):
            return None
        before = self._before(given, ids)
        end = max((int(one.keys[-1]) + 1 for one in distinct(tokens) if len(one.keys)), default=M)
        goes_on = before is not None and length == N and before.shape[1] + N in (M, end)
        known = self._sides.get(given.writes)
        is_known = known is not None and known.number == given.number
        if known is not None and before is not None and goes_on and length < M:
            if is_known:
                goes_on = known.so_far.shape[1] == before.shape[1] + N
                return known.so_far if goes_on and torch.equal(known.so_far[:, -N:], ids) else ids
            if (rows := _followed(known.keys, seen)) is not None:
                whole = torch.cat([before[rows], ids], dim=1)
                keys = _keys(seen, whole)
                self._sides[given.writes] = _Side(given.number, before[rows], whole, keys)
                return whole
        if known is not None and is_known and torch.equal(known.so_far, ids):
            return ids  # a layer after the first
        if length == M or end == N:  # a text begins
            keys = _keys(seen, ids)
            self._sides[given.writes] = _Side(given.number, before, ids, keys, self._has_asked)
            self._has_asked = given.writes and self._has_asked
        return ids

    def _before(self, given: Given, ids: Tensor) -> Tensor | None:
        """What the side was given before this pass, where that was the last thing it did."""
        side = self._sides.get(given.writes)
        if side is None or len(side.so_far) != len(ids):
            return None
        if side.number == given.number:
            return side.before
        return side.so_far if side.number == given.number - 1 else None

    def _of_cross(self, seen: Observed, given: Given) -> Ids:
        N, M = seen.shape[2:]
        queries = given.asking
        if queries is not None and queries.shape[1] != N:
            queries = None
        side = self._sides.get(given.writes)
        is_of_pass = side is not None and side.number == given.number
        if queries is not None and side is not None and is_of_pass:
            ends_with_them = torch.equal(side.so_far[:, -N:], queries)
            queries = side.so_far if ends_with_them else queries
        read, last = given.answering, self._sides.get(False)
        self._has_asked = True
        if read is None and given.writes and last is not None:
            read = last.so_far if last.is_one else None
        return Ids(read if read is not None and read.shape[1] == M else None, queries)


def _keys(seen: Observed, ids: Tensor) -> Tensor | None:
    """The keys of a head at the places of ids, (B, L, d)."""
    if len(seen.key) != len(ids):
        return None
    return seen.key[:, 0, : ids.shape[1]].detach().clone()


def _followed(before: Tensor | None, seen: Observed) -> list[int] | None:
    """From which text of the pass before each text goes on, by the keys that are in its cache.

    Beam search moves texts from row to row. None where the cache is that of other texts.
    """
    if before is None:
        return list(range(len(seen.key)))
    now = seen.key[:, 0, : before.shape[1]]
    if now.shape != before.shape or now.device != before.device:
        return None
    found = []
    for row, keys in enumerate(now):
        rows = (row, *(other for other in range(len(before)) if other != row))
        same = next((other for other in rows if _is_same(before[other], keys)), None)
        if same is None:
            return None
        found.append(same)
    return found


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether keys are the same but for rounding: a cache may have them made anew."""
    if torch.equal(one, other):
        return True
    return bool((one - other).abs().max() <= SAME * one.abs().max())
