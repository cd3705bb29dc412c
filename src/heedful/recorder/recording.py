"""What was recorded: calls in order, for each sequence of the batch without its padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops.causes import Causes
from heedful.ops.masks import Dense, Mask
from heedful.recorder.call import Call
from heedful.recorder.capture import Capture, Check
from heedful.recorder.recognise import is_causal, recognise


class Sequence:
    """The calls of one sequence, in the order in which they happened."""

    def __init__(self, captures: list[Capture], index: int) -> None:
        self._captures, self._index = captures, index
        self._calls: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._captures)

    def __iter__(self) -> Iterator[Call]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...
    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"call {index} of {len(self)}")
        at = index % len(self)
        if at not in self._calls:
            self._calls[at] = call_of(self._captures[at], self._index)
        return self._calls[at]

    def summary(self) -> dict[str, Tensor | list]:
        """The statistics of every head of every call, (calls, heads), and `received` of each."""
        summaries = [call.summary() for call in self]
        if not summaries:
            raise RunError(
                "nothing was recorded",
                expected="a forward pass inside the `with` block",
                cause="a model whose attention no door sees, or no call at all",
            )
        together: dict[str, Tensor | list] = {
            name: torch.stack([summary[name] for summary in summaries])
            for name in summaries[0]
            if name != "received"
        }
        together["received"] = [summary["received"] for summary in summaries]
        return together


class Recording(Sequence):
    """What `heedful.record` yields; iterated, it is its first sequence."""

    def __init__(self) -> None:
        super().__init__([], 0)

    def add(self, capture: Capture) -> None:
        """Keep one more call."""
        self._captures.append(capture)

    @property
    def sequences(self) -> list[Sequence]:
        """One for each sequence of the batch, without its padding."""
        if not self._captures:
            return []
        return [Sequence(self._captures, b) for b in range(len(self._captures[0].seen.query))]

    def certificate(self) -> list[tuple[str, Check]]:
        """How far recomputed rows were from the model's own output, for each call."""
        return [(capture.name, capture.check) for capture in self._captures]


def call_of(capture: Capture, index: int) -> Call:
    """One sequence of a call, without its padding, and its mask as a structure."""
    seen = capture.seen
    if not -len(seen.query) <= index < len(seen.query):
        raise ArgumentError(f"sequence {index}", expected=f"one of the batch of {len(seen.query)}")
    causes = seen.causes(index)
    queries, keys = _real(capture, index)
    causes = _cropped(causes, queries, keys)
    mask = recognise(causes.mask, causes.shape)
    return Call(
        capture.name,
        capture.layer,
        capture.forward,
        _kind(capture, mask),
        causes._replace(mask=mask),
        capture.check,
        seen.value[index][:, keys] if capture.values else None,
        door=seen.door,
    )


def _real(capture: Capture, index: int) -> tuple[Tensor, Tensor]:
    """Indices of the queries and keys that are no padding."""
    _, _, N, _ = capture.seen.query.shape
    M = capture.seen.key.shape[2]
    if capture.keep is None:
        return torch.arange(N), torch.arange(M)
    keys = capture.keep[index % len(capture.keep)].nonzero()[:, 0]
    queries = keys - (M - N)  # a query stands at the position of its key
    return queries[queries >= 0], keys


def _cropped(causes: Causes, queries: Tensor, keys: Tensor) -> Causes:
    _, N, M = causes.shape
    if len(queries) == N and len(keys) == M:
        return causes
    bias = causes.bias
    if bias is not None:
        bias = bias if bias.shape[-2] == 1 else bias[..., queries, :]
        bias = bias if bias.shape[-1] == 1 else bias[..., keys]
    mask = None if causes.mask is None else _crop_mask(causes.mask, causes.shape, queries, keys)
    return causes._replace(
        query=causes.query[:, queries], key=causes.key[:, keys], bias=bias, mask=mask
    )


def _crop_mask(mask: Mask, shape: tuple[int, int, int], queries: Tensor, keys: Tensor) -> Mask:
    return Dense(mask.crop(shape, queries, keys))


def _kind(capture: Capture, mask: Mask | None) -> str:
    if capture.seen.cross or "cross" in capture.name.lower() or "encoder_attn" in capture.name:
        return "cross"
    if is_causal(mask) or (capture.seen.query.shape[2] == 1 and capture.seen.key.shape[2] > 1):
        return "causal"
    return "self" if capture.seen.query.shape[2] == capture.seen.key.shape[2] else "cross"
