"""A generation while it is made: the causes of each pass are appended to those before.

A causal row never changes once it is written, so that the first T tokens are the same recording
whatever comes after them. Nothing of N × M is kept, and no pass once its rows are taken; views of
what was kept stay what they are.

H query heads, G key heads, n queries of a pass, M keys, T tokens so far.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, RunError
from heedful.ops.masks import Causal, Mask, Window
from heedful.recording.capture import Capture
from heedful.recording.generation import allowed_rows, broken, goes_on, worst_of
from heedful.recording.module_names import side_of
from heedful.recording.real_tokens import RealTokens
from heedful.recording.recording import Recording

BEFOREHAND = 64  # rows for which there is room at first; then it doubles


class Growing:
    """What a model attends to in a text that it continues, pass by pass; of one text.

    >>> from heedful.models import GPT, GPTConfig
    >>> from heedful.recorder import record
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> cache, growing = model.new_cache(1, 8), Growing()
    >>> for ids in ([1, 2, 3], [4], [5]):
    ...     with record(model) as recording:
    ...         _ = model.hidden_states(torch.tensor([ids]), cache=cache)
    ...     growing.take(recording)
    >>> growing.tokens, growing.recording(4)[1].shape
    (5, (3, 4, 4))
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.missed: dict[str, str] = {}
        self._parts: dict[tuple[str, int], _Fixed | _Growth] = {}  # by module, and its n-th call

    @torch.inference_mode(False)  # what is kept is written into by whoever looks at it
    @torch.no_grad()
    def take(self, recording: Recording) -> None:
        """Append a pass, and let the recording go on without it; the first is that of the prompt.

        Raises:
            RunError: a pass that does not go on from those before, a batch, positions that are a
                bias of all queries and keys, or a mask that is neither causal nor a window.
        """
        self.missed |= recording.missed
        counted: dict[str, int] = {}
        for capture in recording.taken():
            n = counted[capture.name] = counted.get(capture.name, -1) + 1
            key = capture.name, n
            if key in self._parts:
                self._parts[key].take(capture)
            elif self.tokens:
                raise broken(capture, 0)
            else:
                is_encoder = capture.kind != "cross" and side_of(capture.name) == "encoder"
                self._parts[key] = _Fixed(capture) if is_encoder else _Growth(capture)
        lengths = {part.length for part in self._parts.values() if part.grows}
        if len(lengths) > 1:
            what = "layers that have seen different numbers of tokens"
            raise RunError(what, cause="a pass that was cut off")
        self.tokens = lengths.pop() if lengths else 0

    def until(self, tokens: int) -> Growing:
        """A copy with the first tokens alone, that grows by itself."""
        growing = Growing()
        growing.missed = dict(self.missed)
        growing.tokens = self._checked(tokens)
        with torch.inference_mode(False):
            growing._parts = {key: part.until(tokens) for key, part in self._parts.items()}
        return growing

    def recording(self, tokens: int | None = None) -> Recording:
        """The first T tokens, default all, as one pass over them is recorded: views, no copies.

        Raises:
            ArgumentError: more tokens than there are, or none.
        """
        size = self._checked(self.tokens if tokens is None else tokens)
        recording = Recording([part.capture(size) for part in self._parts.values()])
        recording.missed.update(self.missed)
        return recording

    def _checked(self, tokens: int) -> int:
        if not 0 < tokens <= self.tokens:
            raise ArgumentError(f"{tokens} tokens", expected=f"1 to {self.tokens}")
        return tokens


class _Rows:
    """A tensor that grows along its last axis but one, in room that doubles."""

    def __init__(self, first: Tensor) -> None:
        self.length, self._room = 0, first[..., :0, :]
        self.append(first)

    def append(self, rows: Tensor) -> None:
        """Add rows (…, n, d) after those there are."""
        end = self.length + rows.shape[-2]
        if end > self._room.shape[-2]:
            shape = (*rows.shape[:-2], max(2 * end, BEFOREHAND), rows.shape[-1])
            larger = torch.empty(shape, dtype=rows.dtype, device=rows.device)
            larger[..., : self.length, :] = self.first()
            self._room = larger
        self._room[..., self.length : end, :] = rows
        self.length = end

    def first(self, rows: int | None = None) -> Tensor:
        """The first rows, by default all, a view."""
        return self._room[..., : self.length if rows is None else rows, :]


class _Fixed:
    """A call that is there once: an encoder's on the source."""

    grows, length = False, 0

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def take(self, capture: Capture) -> None:
        raise broken(capture, 0)

    def until(self, tokens: int) -> _Fixed:
        return self

    def capture(self, tokens: int) -> Capture:
        return self._capture


class _Growth:
    """The calls of one module: causal ones get rows and keys, crossing ones rows alone."""

    grows = True

    def __init__(self, first: Capture) -> None:
        self._about, self._check = first, first.check
        self._crosses = first.kind == "cross"
        self._mask: Mask | None = None if self._crosses else Causal()
        _check_form(first, self._crosses or goes_on(first))
        self._fit(first, 0)
        self._query, self._key, self._sums = map(_Rows, (first.query, first.key, _sums(first)))
        self._ids = first.ids_of_queries(0)

    @property
    def length(self) -> int:
        """How many tokens it has seen."""
        return self._query.length

    def take(self, capture: Capture) -> None:
        """Append the rows of a pass, and its new keys; the others have to be those there are."""
        _check_form(capture)
        new = 0 if self._crosses else capture.query.shape[2]
        held = capture.key.shape[2] - new
        start = self._key.length - held  # above 0 where a cache forgets: it holds the last keys
        anew = held <= 0 and not self._crosses  # the text is read from its beginning again
        fits = start >= 0 and not anew and not (start and self._crosses)
        fits = fits and capture.scale == self._about.scale
        if not (fits and torch.equal(capture.key[:, :, :held], self._key.first()[:, :, start:])):
            raise broken(capture, 0)
        self._fit(capture, self.length)
        self._key.append(capture.key[:, :, held:])
        self._query.append(capture.query)
        self._sums.append(_sums(capture))
        self._check = max(self._check, capture.check, key=worst_of)
        ids = capture.ids_of_queries(0)
        self._ids = None if self._ids is None or ids is None else torch.cat([self._ids, ids])

    def until(self, tokens: int) -> _Growth:
        """A copy of the first tokens."""
        growth = copy(self)
        growth._query, growth._sums = (_Rows(of.first(tokens)) for of in (self._query, self._sums))
        if not self._crosses:
            growth._key = _Rows(self._key.first(tokens))
        growth._ids = None if self._ids is None else self._ids[:tokens]
        return growth

    def capture(self, tokens: int) -> Capture:
        """The first tokens as one pass."""
        key = self._key.first() if self._crosses else self._key.first(tokens)
        ids = None if self._ids is None else self._ids[None, :tokens]
        real = RealTokens.all_of(tokens, key.shape[2])._replace(mask=self._mask)
        return replace(
            self._about, pass_index=0, kind="cross" if self._crosses else "causal",
            query=self._query.first(tokens), key=key, tokens=[real], checked=self._check,
            ids=self._about.ids if self._crosses else ids, query_ids=ids if self._crosses else None,
            against={}, bias=None, sums=self._sums.first(tokens)[..., 0],
        )  # fmt: skip

    def _fit(self, capture: Capture, done: int) -> None:
        """See that a pass has the mask of the whole; a window shows when it is full."""
        _, H, n, _ = capture.query.shape
        start = 0 if self._crosses else done + n - capture.key.shape[2]
        if not start and capture.tokens[0].mask == self._mask:
            return
        total = capture.key.shape[2] + start

        def is_it(guess: Mask | None) -> bool:
            for rows, allowed in allowed_rows(capture, 0):
                table = nn.functional.pad(allowed, (start, 0))
                here = slice(done + rows.start, done + rows.stop)
                expected = True if guess is None else guess.crop((H, total, total), here)
                if not bool((table == expected).all()):
                    return False
            return True

        if is_it(self._mask):
            return
        *_, (_, last) = allowed_rows(capture, 0)
        seen = int(last[0, -1].sum())
        if self._mask == Causal() and seen and done <= seen:
            self._mask = Causal() & Window(seen)
            if is_it(self._mask):
                return
        raise RunError(
            f"{capture.name} has a mask that is neither causal nor a window",
            expected="one that stays what it is when the text goes on",
            remedy="record the generation, and look at it with recording.stitched()",
        )


def _check_form(capture: Capture, fits: bool = True) -> None:
    """Refuse a batch, padding, a bias of queries and keys, or another kind of call."""
    real, sinks, (B, H, n, _) = capture.tokens[0], capture.sinks, capture.query.shape
    whole = len(real.queries) == n and len(real.keys) == capture.key.shape[2]
    adds_nothing = True  # a bias may be the mask again: zero wherever it lets a key be seen
    if capture.bias is not None:
        bias = capture.bias[0].expand(H, n, -1)
        seen = allowed_rows(capture, 0)
        adds_nothing = not any(bool((bias[:, rows] * allowed).any()) for rows, allowed in seen)
    rules = {
        "a batch": B == 1 and whole,
        "positions that are a bias of queries and keys": adds_nothing,
        "sinks that differ from query to query": sinks is None or sinks.ndim == 1,
        "a call that is not causal": fits,
    }
    why = next((name for name, holds in rules.items() if not holds), None)
    if why:
        raise RunError(
            f"{why} in {capture.name}",
            expected="one text that is continued, by causal attention",
            remedy="record the generation, and look at it with recording.stitched()",
        )


def _sums(capture: Capture) -> Tensor:
    """The log-sum-exps of a pass as rows, (1, H, n, 1), NaN where one is not known."""
    return capture.row_sums(0).table[None, :, :, None]
