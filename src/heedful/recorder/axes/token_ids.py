"""The token ids of the queries and keys of a call, collected over the passes of a generation.

With a cache, a pass receives only the ids of its queries; earlier passes received those of the
other keys. In cross-attention, the keys are the tokens that the encoder read last. Shapes: B texts,
N queries, M keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.observed_call import Observed
from heedful.recording.unpadded import RealTokens, distinct

SAME = 1e-3  # tolerance relative to the largest entry; keys of other tokens differ by more


class Ids(NamedTuple):
    """The token ids of a call, (B, L); None if unknown.

    keys: the ids of the keys; only those of the queries if earlier passes are unknown.
    queries: in cross-attention, the ids of the decoder so far; the last N are the queries'.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None


class _Side(NamedTuple):
    """The ids that the encoder or the decoder received, (B, L).

    number: the number of its latest pass.
    before, so_far: the ids before that pass, and the ids up to its end.
    keys: the keys of one head of its first call, (B, L, d), to recognise its cache later; or None.
    is_alone: False if the encoder read another text before, to which no call has attended.
    """

    number: int
    before: Tensor | None
    so_far: Tensor
    keys: Tensor | None
    is_alone: bool = True


class TokenIds:
    """Tracks the token ids of the encoder and the decoder of a model."""

    def __init__(self) -> None:
        self._sides: dict[bool, _Side] = {}  # by `in_decoder`
        self._was_attended = True  # whether a call attended to the encoder's last text

    def of(self, call: Observed, inputs: Inputs, in_decoder: bool, tokens: list[RealTokens]) -> Ids:
        """Return the ids of a call, given the inputs of its pass and its real tokens."""
        if call.cross:
            return self._of_cross(call, inputs, in_decoder)
        ids = inputs.ids(in_decoder)
        if ids is None:
            return Ids()
        return Ids(self._of_self(call, ids, inputs.number, in_decoder, tokens))

    def _of_self(
        self, call: Observed, ids: Tensor, number: int, in_decoder: bool, tokens: list[RealTokens]
    ) -> Tensor | None:
        N, M = call.shape[2:]
        length = ids.shape[1]
        if length not in (N, M):
            return None
        side = self._sides.get(in_decoder)
        if side is not None and side.number == number and torch.equal(side.so_far[:, -N:], ids):
            return side.so_far  # for all layers after the first
        ends = [int(real.keys[-1]) + 1 for real in distinct(tokens) if len(real.keys)]
        end = max(ends, default=M)
        before = self._before(side, number, ids)
        may_continue = before is not None and length == N < M and before.shape[1] + N in (M, end)
        if may_continue and before is not None and side is not None and _agree(side.keys, call):
            ids = torch.cat([before, ids], dim=1)
            self._sides[in_decoder] = _Side(number, before, ids, _keys(call, ids))
        elif length == M or end == N:  # a new text begins
            is_alone = self._was_attended
            self._sides[in_decoder] = _Side(number, before, ids, _keys(call, ids), is_alone)
            self._was_attended = in_decoder and self._was_attended
        return ids

    @staticmethod
    def _before(side: _Side | None, number: int, ids: Tensor) -> Tensor | None:
        """Return the ids before this pass if it directly follows the last pass; else None."""
        if side is None or len(side.so_far) != len(ids):
            return None
        if side.number == number:
            return side.before
        return side.so_far if side.number == number - 1 else None

    def _of_cross(self, call: Observed, inputs: Inputs, in_decoder: bool) -> Ids:
        N, M = call.shape[2:]
        queries = inputs.ids(in_decoder)
        queries = queries if queries is not None and queries.shape[1] == N else None
        side = self._sides.get(in_decoder)
        is_of_pass = side is not None and side.number == inputs.number
        if queries is not None and side is not None and is_of_pass:
            is_end = torch.equal(side.so_far[:, -N:], queries)
            queries = side.so_far if is_end else queries
        # cross-attention outside a decoder may read an image, which has no ids
        keys, encoder = None, self._sides.get(False)
        self._was_attended = True
        if in_decoder:
            keys = inputs.ids(False, is_named=True)
            if keys is None and encoder is not None and encoder.is_alone:
                keys = encoder.so_far
        return Ids(keys if keys is not None and keys.shape[1] == M else None, queries)


def _keys(call: Observed, ids: Tensor) -> Tensor | None:
    """Return the keys of the first head at the positions of the ids, (B, L, d)."""
    if len(call.key) != len(ids):
        return None
    return call.key[:, 0, : ids.shape[1]].detach().clone()


def _agree(earlier: Tensor | None, call: Observed) -> bool:
    """Whether the call still has the earlier keys; False for another text or after beam search."""
    if earlier is None:
        return True
    keys = call.key[:, 0, : earlier.shape[1]]
    if keys.shape != earlier.shape or keys.device != earlier.device:
        return False
    excess = (keys - earlier).abs().amax(dim=(1, 2)) - SAME * keys.abs().amax(dim=(1, 2))
    return bool((excess <= 0).all())
