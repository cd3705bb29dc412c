"""Some layers and heads of what was recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from heedful.errors import ArgumentError
from heedful.recording import Call
from heedful.recording.row_sums import RowSums


def chosen(
    calls: list[Call], layers: Iterable[int] | None = None, heads: Iterable[int] | None = None
) -> list[Call]:
    """The calls of some layers, each with some of its heads.

    Args:
        calls: of one text.
        layers, heads: the model's numbers, from 0; default all. A call that has none of the heads
            is left out, as layers need not have as many.

    Raises:
        ArgumentError: a layer or a head that no call has.
    """
    if layers is not None:
        _check(layers, {call.layer for call in calls if call.layer is not None}, "layer")
        calls = [call for call in calls if call.layer in set(layers)]
    if heads is None:
        return calls
    _check(heads, {head for call in calls for head in call.heads}, "head")
    found = [(call, [head for head in call.heads if head in set(heads)]) for call in calls]
    return [_of_heads(call, own) for call, own in found if own]


def _check(numbers: Iterable[int], known: set[int], what: str) -> None:
    for number in numbers:
        if number not in known:
            run = sorted(known)
            whole = len(run) > 1 and run == list(range(run[0], run[-1] + 1))
            listed = f"{run[0]} to {run[-1]}" if whole else ", ".join(map(str, run))
            raise ArgumentError(f"{what} {number}", expected=f"one of {what}s {listed or 'none'}")


def _of_heads(call: Call, heads: list[int]) -> Call:
    """The same call with some heads alone, each with a key of its own."""
    if heads == call.heads:
        return call
    places = torch.tensor([call.heads.index(head) for head in heads], device="cpu")
    value = call.value
    if value is not None:
        value = value[places // (call.shape[0] // len(value))]
    of = call.causes
    of = of._replace(
        query=of.query[places],
        key=of.key[places // (len(of.query) // len(of.key))],
        mask=None if of.mask is None else of.mask.of_heads(places),
        bias=of.bias[places]
        if of.bias is not None and of.bias.ndim == 3 and len(of.bias) > 1
        else of.bias,
        sinks=None if of.sinks is None else of.sinks[places],
    )
    sums = RowSums(call.sums.table[places], call.sums.queries)
    return replace(call, causes=of, sums=sums, value=value, chosen=heads, _kept={})
