"""Turns each `PendingCall` into a `Capture` when the recording is read; with a budget, at once.

The forward pass waits only for copies of queries, keys, masks and some rows of the output. Axes,
padding, mask structure, kind and token ids are determined later, in the order of the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heedful.recorder.axes.call_kind import crosses, kind_of
from heedful.recorder.axes.mask_structure import Masks
from heedful.recorder.axes.padding import tokens_of, visible_keys
from heedful.recorder.axes.token_ids import Ids, TokenIds
from heedful.recorder.doors import tape_inputs
from heedful.recorder.doors.multihead_axes import DOOR as MULTIHEAD
from heedful.recorder.observed_call import AXES, Observed, TokenMasks
from heedful.recorder.options import Options, check_heads
from heedful.recorder.standard_axes import ArrangedCall, PendingCall, arrange
from heedful.recording.capture import Capture
from heedful.recording.certificate import Check, check_replayed
from heedful.recording.evidence import Evidence
from heedful.recording.proof import Layout
from heedful.recording.tolerance import TOLERANCE
from heedful.recording.unpadded import RealTokens, distinct

NO_NUMBERS = "some queries or keys are NaN or infinite, which each kernel treats in its own way"
# Errors that no call causes, such as a timeout: the next access finalizes the same call again
TRANSIENT = (MemoryError, OSError)


class Finalizer:
    """Turns the pending calls of a recording into captures, one after another. If a call fails,
    `miss` is called with the name of its module and the error."""

    def __init__(self, options: Options, miss: Callable[[str, Exception], None]) -> None:
        self.axes, self.heads, self.dtype = options.axes, options.heads, options.dtype
        self.miss = miss
        self._token_ids = TokenIds()
        # for each module, the number of keys in its last call, and the pass of this call
        self._lengths: dict[str, tuple[int, int]] = {}
        self._begin_pass(-1)

    def _begin_pass(self, pass_index: int) -> None:
        """Clear everything that the layers of a pass share."""
        self._pass, self._masks = pass_index, Masks()
        self._tokens: list[tuple[tuple, tuple, list[RealTokens]]] = []
        self._ids: dict[tuple, tuple[Ids, object]] = {}
        self._loop_texts: Counter[str] = Counter()  # by module: texts so far, in a loop over texts

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, pending: PendingCall, call: ArrangedCall | None = None) -> Capture | None:
        """Return the capture of a call; None if it fails. `call`: the arranged call, if known."""
        if pending.pass_index != self._pass:
            self._begin_pass(pending.pass_index)
        try:
            return self._capture(pending, call or self._arrange(pending))
        except TRANSIENT:
            raise
        except Exception as error:
            self.miss(pending.name, error)
            return None

    def _arrange(self, pending: PendingCall) -> ArrangedCall:
        """Arrange a call. If it has fewer texts than the batch, it is one of a loop over texts."""
        call = arrange(pending, self.axes)
        texts, _ = pending.inputs.texts(pending.observed.query.shape[-2])
        is_batch = call.layout.word == "told" and call.texts > 1  # more reliable than the inputs
        if not texts or call.parts > 1 or call.texts >= texts or is_batch:
            return call
        first = min(self._loop_texts[pending.name], texts - call.texts)
        self._loop_texts[pending.name] += call.texts
        order = f"its text, one of {texts}, is guessed from the order of the calls"
        why = "; ".join(filter(None, (call.layout.why, order)))
        return call._replace(first=first, of_texts=texts, layout=Layout("guessed", why))

    def _capture(self, pending: PendingCall, call: ArrangedCall) -> Capture:
        observed, evidence = call.observed, call.evidence
        weights = None if call.weights is None else call.weights()
        self._masks.split(observed)
        if self.heads is not None and pending.observed.axes != AXES:  # else already selected
            check_heads(self.heads, H := observed.query.shape[1], pending.name)
            observed = observed.of_heads(self.heads)
            if weights is None:
                evidence = evidence.of_heads(self.heads, H)
            else:
                weights = weights[:, self.heads]
        observed.cross = crosses(observed, pending.name)
        tokens = self._real_tokens(pending, observed, call.parts)
        checked: Evidence | Callable[[], Check] = evidence
        if observed.taped is None and not (_is_finite(observed.query) and _is_finite(observed.key)):
            checked = replace(evidence, why=NO_NUMBERS, values=None, outputs=None, sums=None)
        if observed.taped is not None and weights is not None:
            checked = check_replayed(evidence, observed.taped.used)
            near = tape_inputs.NEAR.get(observed.query.dtype, tape_inputs.ROUNDED)
            if self.dtype is not None:
                observed.query = observed.query.to(self.dtype)
                observed.key = observed.key.to(self.dtype)
                near = max(near, TOLERANCE[self.dtype])
            has_product = observed.taped.has_product
            is_near = has_product and _is_near(observed, weights, tokens, near)
            weights = None if is_near else weights
            tokens = tokens if weights is None else _with_weights(tokens, weights)
        kind = self._kind(pending, observed, tokens)
        has_ids = pending.names_tokens and call.layout.word != "guessed"
        ids = self._ids_of(pending, observed, tokens, kind) if has_ids else Ids()
        return Capture(
            pending.name, pending.layer, pending.pass_index, kind, observed.door,
            observed.query, observed.key, observed.value, observed.scale, tokens, checked,
            observed.bias, observed.softcap, observed.sinks, weights,
            ids.keys, ids.queries, self.heads, pending.number, call.layout,
            texts=max(call.texts, call.of_texts), parts=call.parts, first=call.first,
        )  # fmt: skip

    def _real_tokens(self, pending: PendingCall, call: Observed, parts: int) -> list[RealTokens]:
        """Return the real tokens of each sequence; layers with the same mask share them."""
        real = pending.inputs.real(call, pending.in_decoder)
        _, _, N, M = call.shape
        is_of_layer = call.door == MULTIHEAD and call.cross is False and N == M
        if is_of_layer and real.keys is None and call.mask is not None:
            real = TokenMasks(visible_keys(call))  # no hook receives a fused layer's mask
        cached = pending.inputs.cached  # tokens in the cache; any further slots are empty
        is_full = parts > 1 or (cached is not None and cached + N >= M)
        # tables are compared by id(), and stored so that the ids stay valid
        tables = (call.mask, call.bias, real.keys, real.queries)
        key = (*map(id, tables), *call.shape, call.cross, is_full)
        tokens = next((shared for other, _, shared in self._tokens if other == key), None)
        if tokens is None:
            tokens = tokens_of(call, real, is_full)
            self._tokens = [*self._tokens[-7:], (key, tables, tokens)]
        return tokens

    def _kind(self, pending: PendingCall, observed: Observed, tokens: list[RealTokens]) -> str:
        """Return the kind of a call. If its keys grow by the number of queries, it has a cache."""
        N, name, pass_index = observed.shape[2], pending.name, pending.pass_index
        # the number of keys without the empty slots of a cache
        M = max((real.keys.numel() for real in distinct(tokens)), default=0)
        kind = kind_of(observed, name, tokens)
        last_M, last_pass = self._lengths.get(name, (M, pass_index))
        self._lengths[name] = M, pass_index
        # in the same pass, several queries may be pooled tokens, and not new tokens of a cache
        may_grow = N == 1 or pass_index > last_pass
        has_grown = may_grow and 0 < M - last_M == N * max(1, pass_index - last_pass)
        return "causal" if kind == "cross" and not observed.cross and has_grown else kind

    def _ids_of(
        self, pending: PendingCall, observed: Observed, tokens: list[RealTokens], kind: str
    ) -> Ids:
        """Return the token ids at the positions of the queries and of the keys."""
        # all layers of the encoder, or of the decoder, that share a mask have the same ids
        inputs, in_decoder = pending.inputs, pending.in_decoder
        key = kind, *observed.shape, in_decoder, id(tokens), observed.cross, inputs.number
        if key not in self._ids:
            self._ids[key] = self._token_ids.of(observed, inputs, in_decoder, tokens), tokens
        return self._ids[key][0]


def _is_finite(table: Tensor) -> bool:
    """Whether all numbers are finite. To test their sum is faster than to test each number."""
    return bool(table.sum(dtype=torch.promote_types(table.dtype, torch.float32)).isfinite())


def _is_near(observed: Observed, weights: Tensor, tokens: list[RealTokens], near: float) -> bool:
    """Whether query, key, scale, mask and bias reproduce the weights of all real queries."""
    rows = torch.cat([real.queries for real in distinct(tokens)]).unique()
    return tape_inputs.is_near(observed, weights, rows, near)


def _with_weights(tokens: list[RealTokens], weights: Tensor) -> list[RealTokens]:
    """Return the tokens; drop each mask that hides a nonzero weight."""
    checked: dict[int, RealTokens] = {}
    for sequence, real in enumerate(tokens):
        if id(real) in checked:
            continue
        mask = real.mask
        if mask is not None:
            table = mask.crop((weights.shape[1], len(real.queries), len(real.keys)))
            crop = weights[sequence][:, real.queries][:, :, real.keys]
            if bool((crop.to(table.device).masked_fill(table, 0.0) > 0).any()):
                mask = None
        checked[id(real)] = real._replace(mask=mask)
    return [checked[id(real)] for real in tokens]
