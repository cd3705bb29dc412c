"""The recording of a generation that is still running: each pass appends its attention inputs.

In causal attention, later tokens do not change earlier rows. So while the text grows, recordings of
its first tokens stay valid: they are views of the same buffers. No table queries × keys is stored,
and the tensors of a pass are freed after they are copied. Shapes: H query heads, n queries.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, RunError
from heedful.ops.masks import Causal, Mask, Window
from heedful.recording.capture import Capture
from heedful.recording.generation import allowed_rows, can_continue, continuation_error, error_of
from heedful.recording.module_names import side_of
from heedful.recording.recording import Recording
from heedful.recording.unpadded import RealTokens

REMEDY = "record the generation, and view it with recording.stitched()"
INITIAL_CAPACITY = 64  # rows of a new buffer


class LiveGeneration:
    """The recording of one text that a model continues, extended pass by pass.

    >>> from heedful.models import GPT, GPTConfig
    >>> from heedful.recorder import record
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> cache, live = model.new_cache(1, 8), LiveGeneration()
    >>> for ids in ([1, 2, 3], [4], [5]):
    ...     with record(model) as recording:
    ...         _ = model.hidden_states(torch.tensor([ids]), cache=cache)
    ...     live.append(recording)
    >>> live.tokens, live.recording(4)[1].shape
    (5, (3, 4, 4))
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.missed: dict[str, str] = {}
        self._calls: dict[tuple[str, int], _FixedCall | _GrowingCall] = {}  # by module and index

    @torch.inference_mode(False)  # later passes write into the stored tensors
    @torch.no_grad()
    def append(self, recording: Recording) -> None:
        """Move the calls of a pass from its recording to here; the first pass is the prompt's.

        Raises:
            RunError: a pass that was interrupted or does not continue the earlier ones, a batch,
                padding, a position bias, sinks per query, or a mask other than causal or a window.
        """
        self.missed |= recording.missed
        counts: dict[str, int] = {}
        for capture in recording.pop_captures():
            n = counts[capture.name] = counts.get(capture.name, -1) + 1
            key = capture.name, n
            if key in self._calls:
                self._calls[key].append(capture)
            elif self.tokens:
                raise continuation_error(capture, 0)
            else:
                is_encoder = capture.kind != "cross" and side_of(capture.name) == "encoder"
                self._calls[key] = _FixedCall(capture) if is_encoder else _GrowingCall(capture)
        lengths = {call.length for call in self._calls.values() if call.grows}
        if len(lengths) > 1:
            raise RunError(
                "layers with different numbers of tokens", cause="a pass that was interrupted"
            )
        self.tokens = lengths.pop() if lengths else 0

    def until(self, tokens: int) -> LiveGeneration:
        """Return an independent copy of the first tokens, to which passes can be appended."""
        live = LiveGeneration()
        live.missed = dict(self.missed)
        live.tokens = self._check_tokens(tokens)
        with torch.inference_mode(False):
            live._calls = {key: call.until(tokens) for key, call in self._calls.items()}
        return live

    def recording(self, tokens: int | None = None) -> Recording:
        """Return a recording of the first tokens, default all, as one pass; it shares the buffers.

        Raises:
            ArgumentError: a number of tokens below 1, or above the length of the text.
        """
        size = self._check_tokens(self.tokens if tokens is None else tokens)
        recording = Recording([call.capture(size) for call in self._calls.values()])
        recording.missed.update(self.missed)
        return recording

    def _check_tokens(self, tokens: int) -> int:
        if not 0 < tokens <= self.tokens:
            raise ArgumentError(f"{tokens} tokens", expected=f"1 to {self.tokens}")
        return tokens


class _Buffer:
    """A tensor that grows along its second-to-last axis; when the buffer is full, it doubles."""

    def __init__(self, first: Tensor) -> None:
        self.length, self._table = 0, first[..., :0, :]
        self.append(first)

    def append(self, rows: Tensor) -> None:
        """Append rows (…, n, d)."""
        end = self.length + rows.shape[-2]
        if end > self._table.shape[-2]:
            shape = (*rows.shape[:-2], max(2 * end, INITIAL_CAPACITY), rows.shape[-1])
            larger = torch.empty(shape, dtype=rows.dtype, device=rows.device)
            larger[..., : self.length, :] = self.first()
            self._table = larger
        self._table[..., self.length : end, :] = rows
        self.length = end

    def first(self, rows: int | None = None) -> Tensor:
        """Return a view of the first rows, default all."""
        return self._table[..., : self.length if rows is None else rows, :]


class _FixedCall:
    """A call of an encoder, which runs once, on the source."""

    grows, length = False, 0

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def append(self, capture: Capture) -> None:
        raise continuation_error(capture, 0)

    def until(self, tokens: int) -> _FixedCall:
        return self

    def capture(self, tokens: int) -> Capture:
        return self._capture


class _GrowingCall:
    """The calls of a module; each pass appends queries, and in causal attention also new keys."""

    grows = True

    def __init__(self, first: Capture) -> None:
        self._template, self._check = first, first.check
        self._crosses = first.kind == "cross"
        self._mask: Mask | None = None if self._crosses else Causal()
        _check_form(first, self._crosses or can_continue(first))
        self._check_mask(first, 0)
        self._query, self._key, self._sums = map(_Buffer, (first.query, first.key, _sums(first)))
        self._ids = first.ids_of_queries(0)

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return self._query.length

    def append(self, capture: Capture) -> None:
        """Append the queries and new keys of a pass; its old keys must equal the stored keys."""
        _check_form(capture)
        new = 0 if self._crosses else capture.query.shape[2]
        cached = capture.key.shape[2] - new
        start = self._key.length - cached  # above 0 for a sliding cache, which has the last keys
        restarts = cached <= 0 and not self._crosses  # the model reads the text from the start
        fits = start >= 0 and not restarts and not (start and self._crosses)
        fits = fits and capture.scale == self._template.scale
        if not (fits and torch.equal(capture.key[:, :, :cached], self._key.first()[:, :, start:])):
            raise continuation_error(capture, 0)
        self._check_mask(capture, self.length)
        self._key.append(capture.key[:, :, cached:])
        self._query.append(capture.query)
        self._sums.append(_sums(capture))
        self._check = max(self._check, capture.check, key=error_of)
        ids = capture.ids_of_queries(0)
        self._ids = None if self._ids is None or ids is None else torch.cat([self._ids, ids])

    def until(self, tokens: int) -> _GrowingCall:
        """Return a copy of the first tokens."""
        new = copy(self)
        new._query, new._sums = (_Buffer(rows.first(tokens)) for rows in (self._query, self._sums))
        if not self._crosses:
            new._key = _Buffer(self._key.first(tokens))
        new._ids = None if self._ids is None else self._ids[:tokens]
        return new

    def capture(self, tokens: int) -> Capture:
        """Return the first tokens as one pass."""
        key = self._key.first() if self._crosses else self._key.first(tokens)
        ids = None if self._ids is None else self._ids[None, :tokens]
        real = RealTokens.all_of(tokens, key.shape[2])._replace(mask=self._mask)
        return replace(
            self._template, pass_index=0, kind="cross" if self._crosses else "causal",
            query=self._query.first(tokens), key=key, tokens=[real], check_source=self._check,
            ids=self._template.ids if self._crosses else ids,
            query_ids=ids if self._crosses else None, refutations={}, bias=None,
            sums=self._sums.first(tokens)[..., 0],
        )  # fmt: skip

    def _check_mask(self, capture: Capture, earlier: int) -> None:
        """Check that a pass continues the mask; detect a window once the text is longer than it."""
        _, H, n, _ = capture.query.shape
        start = 0 if self._crosses else earlier + n - capture.key.shape[2]
        if not start and capture.tokens[0].mask == self._mask:
            return
        total = capture.key.shape[2] + start

        def is_equal(guess: Mask | None) -> bool:
            for rows, allowed in allowed_rows(capture, 0):
                table = nn.functional.pad(allowed, (start, 0))
                run = slice(earlier + rows.start, earlier + rows.stop)
                expected = True if guess is None else guess.crop((H, total, total), run)
                if not bool((table == expected).all()):
                    return False
            return True

        if is_equal(self._mask):
            return
        *_, (_, last) = allowed_rows(capture, 0)
        size = int(last[0, -1].sum())
        if self._mask == Causal() and size and earlier <= size:
            self._mask = Causal() & Window(size)
            if is_equal(self._mask):
                return
        raise RunError(
            f"{capture.name} has a mask that is neither causal nor a window",
            expected="a mask whose rows do not change when the text grows",
            remedy=REMEDY,
        )


def _check_form(capture: Capture, is_causal_or_cross: bool = True) -> None:
    """Raise a RunError for a call whose earlier rows may change when the text grows."""
    real, sinks, (B, H, n, _) = capture.tokens[0], capture.sinks, capture.query.shape
    has_padding = len(real.queries) < n or len(real.keys) < capture.key.shape[2]
    is_zero = True  # whether the bias is 0 on all unmasked pairs, and thus only repeats the mask
    if capture.bias is not None:
        bias = capture.bias[0].expand(H, n, -1)
        runs = allowed_rows(capture, 0)
        is_zero = not any(bool((bias[:, rows] * allowed).any()) for rows, allowed in runs)
    conditions = {
        "a batch or padding": B == 1 and not has_padding,
        "positions in the form of a bias of the scores": is_zero,
        "sinks that differ from query to query": sinks is None or sinks.ndim == 1,
        "a call that is not causal": is_causal_or_cross,
    }
    fault = next((name for name, is_valid in conditions.items() if not is_valid), None)
    if fault:
        raise RunError(
            f"{fault} in {capture.name}",
            expected="one text, continued by causal attention",
            remedy=REMEDY,
        )


def _sums(capture: Capture) -> Tensor:
    """Return the log-sum-exps of a pass, (1, H, n, 1) as for `_Buffer`; NaN if unknown."""
    return capture.row_sums(0).table[None, :, :, None]
