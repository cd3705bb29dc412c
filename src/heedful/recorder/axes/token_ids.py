"""Which tokens stand at the queries and keys of a call, by position and from pass to pass.

A pass with a cache is given the ids of its queries alone, the passes before those of the other
keys. The keys of cross-attention are the tokens of the latest text that the encoder read.

B texts, N queries, M keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.observed_call import Observed
from heedful.recording.real_tokens import RealTokens, distinct

SAME = 1e-3  # of the largest number of a key: those of other tokens are further away


class Ids(NamedTuple):
    """The ids of a call's tokens, (B, L); None if unknown.

    keys: those of the keys; of the queries alone where a cache is of no pass before.
    queries: those of the queries of cross-attention, which are the last N.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None


class _Side(NamedTuple):
    """The ids that encoder or decoder was given before its latest pass, and up to its end, (B, L).

    keys: (B, L, d), of a head of the first call of that pass, by which a text is recognised; None
        where the call has other rows than there are texts.
    is_alone: False where another text was read just before, and neither was attended to yet.
    """

    number: int
    before: Tensor | None
    so_far: Tensor
    keys: Tensor | None
    is_alone: bool = True


class TokenIds:
    """Knows the tokens of the encoder and of the decoder of a model."""

    def __init__(self) -> None:
        self._sides: dict[bool, _Side] = {}
        self._was_attended = True  # whether what was read last has been attended to

    def of(self, seen: Observed, inputs: Inputs, writes: bool, tokens: list[RealTokens]) -> Ids:
        """The ids of a call with these inputs and real tokens, of a decoder if it `writes`."""
        ids = inputs.ids(writes)
        if seen.cross:
            return self._of_cross(seen, ids, inputs, writes)
        return Ids(ids if ids is None else self._of_self(seen, ids, inputs.number, writes, tokens))

    def _of_self(
        self, seen: Observed, ids: Tensor, number: int, writes: bool, tokens: list[RealTokens]
    ) -> Tensor | None:
        N, M = seen.shape[2:]
        length = ids.shape[1]
        if length not in (N, M):
            return None
        side = self._sides.get(writes)
        if side is not None and side.number == number and torch.equal(side.so_far[:, -N:], ids):
            return side.so_far  # a layer after the first
        last = [int(real.keys[-1]) + 1 for real in distinct(tokens) if len(real.keys)]
        end = max(last, default=M)
        before = self._before(side, number, ids)
        goes_on = before is not None and length == N < M and before.shape[1] + N in (M, end)
        if goes_on and before is not None and side is not None and _agree(side.keys, seen):
            ids = torch.cat([before, ids], dim=1)
            self._sides[writes] = _Side(number, before, ids, _keys(seen, ids))
        elif length == M or end == N:  # a text begins
            self._sides[writes] = _Side(number, before, ids, _keys(seen, ids), self._was_attended)
            self._was_attended = writes and self._was_attended
        return ids

    @staticmethod
    def _before(side: _Side | None, number: int, ids: Tensor) -> Tensor | None:
        """The ids before this pass, where the last pass of this side was just before."""
        if side is None or len(side.so_far) != len(ids):
            return None
        if side.number == number:
            return side.before
        return side.so_far if side.number == number - 1 else None

    def _of_cross(self, seen: Observed, ids: Tensor | None, inputs: Inputs, writes: bool) -> Ids:
        N, M = seen.shape[2:]
        queries = ids if ids is not None and ids.shape[1] == N else None
        side = self._sides.get(writes)
        is_of_pass = side is not None and side.number == inputs.number
        if queries is not None and side is not None and is_of_pass:
            ends_with_them = torch.equal(side.so_far[:, -N:], queries)
            queries = side.so_far if ends_with_them else queries
        # of what reads, the keys may be of an image
        read, last = inputs.ids(False, named=True) if writes else None, self._sides.get(False)
        self._was_attended = True
        if read is None and writes and last is not None:
            read = last.so_far if last.is_alone else None
        return Ids(read if read is not None and read.shape[1] == M else None, queries)


def _keys(seen: Observed, ids: Tensor) -> Tensor | None:
    """The keys of a head at the places of ids, (B, L, d)."""
    if len(seen.key) != len(ids):
        return None
    return seen.key[:, 0, : ids.shape[1]].detach().clone()


def _agree(before: Tensor | None, seen: Observed) -> bool:
    """Whether the cache has the keys of the pass before, but for rounding: it is not of another
    text, and no beam search has moved texts."""
    if before is None:
        return True
    now = seen.key[:, 0, : before.shape[1]]
    if now.shape != before.shape or now.device != before.device:
        return False
    off = (now - before).abs().amax(dim=(1, 2)) - SAME * now.abs().amax(dim=(1, 2))
    return bool((off <= 0).all())
