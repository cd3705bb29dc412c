"""Makes a kept call of what a door has seen, when it is first looked at.

A forward pass waits only for copies of queries, keys and a few rows of the output. Axes, padding,
structure of the mask, kind and ids of tokens are worked out later, in the order of the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heedful.recorder.arranging import Arranged, Seen, arranged
from heedful.recorder.axes.call_kind import crosses, kind_of
from heedful.recorder.axes.mask_structure import Masks
from heedful.recorder.axes.padding import keys_seen, tokens_of
from heedful.recorder.axes.token_ids import Ids, TokenIds
from heedful.recorder.doors import tape_inputs
from heedful.recorder.doors.multihead_attention import DOOR as MULTIHEAD
from heedful.recorder.observed_call import AXES, Observed, Real
from heedful.recorder.options import Options, check_heads
from heedful.recording.capture import Capture
from heedful.recording.certificate import Check, check_replayed
from heedful.recording.evidence import Evidence
from heedful.recording.proof import Layout
from heedful.recording.real_tokens import RealTokens, distinct
from heedful.recording.tolerance import TOLERANCE

NO_NUMBERS = "some queries or keys are no numbers, of which kernels make what each of them does"
# Errors that are not of a call, such as a timeout: it is settled again when it is next looked at
FROM_OUTSIDE = (MemoryError, OSError)


class Settling:
    """Settles the calls of one recording, in their order; `miss` is called with a module's name and
    the error for a call that is not understood."""

    def __init__(self, options: Options, miss: Callable[[str, Exception], None]) -> None:
        self.axes, self.heads, self.dtype = options.axes, options.heads, options.dtype
        self.miss = miss
        self._token_ids = TokenIds()
        # of each module's last call: its number of keys, and its pass
        self._lengths: dict[str, tuple[int, int]] = {}
        self._begin(-1)

    def _begin(self, pass_index: int) -> None:
        """Forget what the layers of a pass share."""
        self._pass, self._masks = pass_index, Masks()
        self._tokens: list[tuple[tuple, tuple, list[RealTokens]]] = []
        self._ids: dict[tuple, tuple[Ids, object]] = {}
        self._of_some: Counter[str] = Counter()  # calls of one text of several, by module

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, seen: Seen, call: Arranged | None = None) -> Capture | None:
        """The call as it is kept, arranged so; None where it is not understood, which is told."""
        if seen.pass_index != self._pass:
            self._begin(seen.pass_index)
        try:
            return self._kept(seen, call or self._arranged(seen))
        except FROM_OUTSIDE:
            raise
        except Exception as error:
            self.miss(seen.name, error)
            return None

    def _arranged(self, seen: Seen) -> Arranged:
        """A call arranged; of fewer texts than there are, as a loop over them makes, in turn."""
        call = arranged(seen, self.axes)
        texts, _ = seen.inputs.texts(seen.observed.query.shape[-2])
        is_batch = call.layout.word == "told" and call.texts > 1  # a layer knows better
        if not texts or call.parts > 1 or call.texts >= texts or is_batch:
            return call
        first = min(self._of_some[seen.name], texts - call.texts)
        self._of_some[seen.name] += call.texts
        order = f"which of the {texts} texts it is of is by the order of the calls"
        why = "; ".join(filter(None, (call.layout.why, order)))
        return call._replace(first=first, of_texts=texts, layout=Layout("guessed", why))

    def _kept(self, seen: Seen, call: Arranged) -> Capture:
        observed, evidence = call.observed, call.evidence
        weights = None if call.weights is None else call.weights()
        self._masks.split(observed)
        if self.heads is not None and seen.observed.axes != AXES:  # else they are chosen already
            check_heads(self.heads, H := observed.query.shape[1], seen.name)
            observed = observed.of_heads(self.heads)
            if weights is None:
                evidence = evidence.of_heads(self.heads, H)
            else:
                weights = weights[:, self.heads]
        observed.cross = crosses(observed, seen.name)
        tokens = self._real_tokens(seen, observed, call.parts)
        checked: Evidence | Callable[[], Check] = evidence
        if observed.meeting is None and not (
            _are_numbers(observed.query) and _are_numbers(observed.key)
        ):
            checked = replace(evidence, why=NO_NUMBERS, values=None, outputs=None, sums=None)
        if observed.meeting is not None and weights is not None:
            checked = check_replayed(evidence, observed.meeting.used)
            near = tape_inputs.NEAR.get(observed.query.dtype, tape_inputs.ROUNDED)
            if self.dtype is not None:
                observed.query = observed.query.to(self.dtype)
                observed.key = observed.key.to(self.dtype)
                near = max(near, TOLERANCE[self.dtype])
            has_product = observed.meeting.has_product
            is_near = has_product and _is_near(observed, weights, tokens, near)
            weights = None if is_near else weights
            tokens = tokens if weights is None else _with_weights(tokens, weights)
        kind = self._kind(seen, observed, tokens)
        ids = self._ids_of(seen, observed, tokens, kind, call.layout)
        return Capture(
            seen.name, seen.layer, seen.pass_index, kind, observed.door,
            observed.query, observed.key, observed.value, observed.scale, tokens, checked,
            observed.bias, observed.softcap, observed.sinks, weights,
            ids.keys, ids.queries, self.heads, seen.number, call.layout,
            texts=max(call.texts, call.of_texts), parts=call.parts, first=call.first,
        )  # fmt: skip

    def _real_tokens(self, seen: Seen, observed: Observed, parts: int) -> list[RealTokens]:
        """The real tokens of each sequence; layers of a pass that share a mask share them."""
        real = seen.inputs.real(observed, seen.writes)
        _, _, N, M = observed.shape
        is_of_layer = observed.door == MULTIHEAD and observed.cross is False and N == M
        if is_of_layer and real.keys is None and observed.mask is not None:
            real = Real(keys_seen(observed))  # torch's encoder layers do not tell hooks of padding
        cached = seen.inputs.cached  # by which the cache has no room behind its tokens
        is_full = parts > 1 or (cached is not None and cached + N >= M)
        # known by their ids, as == of tensors compares entries; held, so that these stay theirs
        held = (observed.mask, observed.bias, real.keys, real.queries)
        key = (*map(id, held), *observed.shape, observed.cross, is_full)
        tokens = next((made for other, _, made in self._tokens if other == key), None)
        if tokens is None:
            tokens = tokens_of(observed, real, is_full)
            self._tokens = [*self._tokens[-7:], (key, held, tokens)]
        return tokens

    def _kind(self, seen: Seen, observed: Observed, tokens: list[RealTokens]) -> str:
        """The kind of a call; keys that grew by its queries since the last call are a cache's."""
        N, name = observed.shape[2], seen.name
        # a cache may have room for more
        M = max((real.keys.numel() for real in distinct(tokens)), default=0)
        kind = kind_of(observed, name, tokens)
        before, last = self._lengths.get(name, (M, seen.pass_index))
        self._lengths[name] = M, seen.pass_index
        # inside one pass several queries may be others, such as means that ask what they are of
        may_grow = N == 1 or seen.pass_index > last
        has_grown = may_grow and 0 < M - before == N * max(1, seen.pass_index - last)
        return "causal" if kind == "cross" and not observed.cross and has_grown else kind

    def _ids_of(
        self, seen: Seen, observed: Observed, tokens: list[RealTokens], kind: str, layout: Layout
    ) -> Ids:
        """The ids of the tokens at queries and keys, by position; none of a guessed layout."""
        if layout.word == "guessed" or not seen.names_tokens:
            return Ids()
        # layers of one side that share a mask have the same tokens
        key = kind, *observed.shape, seen.writes, id(tokens), observed.cross, seen.inputs.number
        if key not in self._ids:
            ids = self._token_ids.of(observed, seen.inputs, seen.writes, tokens)
            self._ids[key] = ids, tokens
        return self._ids[key][0]


def _are_numbers(table: Tensor) -> bool:
    """Whether all are finite, by their sum, which takes less time."""
    return bool(table.sum(dtype=torch.promote_types(table.dtype, torch.float32)).isfinite())


def _is_near(observed: Observed, weights: Tensor, tokens: list[RealTokens], near: float) -> bool:
    """Whether what the weights are a function of gives those of the tape, on real tokens."""
    rows = torch.cat([real.queries for real in distinct(tokens)]).unique()
    return tape_inputs.is_near(observed, weights, rows, near)


def _with_weights(tokens: list[RealTokens], weights: Tensor) -> list[RealTokens]:
    """The tokens, without masks that hide something which has a weight."""
    made: dict[int, RealTokens] = {}
    for row, real in enumerate(tokens):
        if id(real) in made:
            continue
        mask = real.mask
        if mask is not None:
            table = mask.crop((weights.shape[1], len(real.queries), len(real.keys)))
            own = weights[row][:, real.queries][:, :, real.keys]
            if bool((own.to(table.device).masked_fill(table, 0.0) > 0).any()):
                mask = None
        made[id(real)] = real._replace(mask=mask)
    return [made[id(real)] for real in tokens]
