"""Reads the calls of another run: recorded weights with this run's values, or with recorded ones.

Sizes: S recorded sequences, h heads, G key heads, N queries, M keys, v width of a value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.configuration import nearest
from heedful.errors import ArgumentError, RunError
from heedful.interventions.head_call import CHANGED, HeadCall, attend, by_definition
from heedful.ops.definition import per_query_head
from heedful.recording import Recording
from heedful.recording.capture import Capture
from heedful.recording.proof import proof_of

SIZES = "{} heads of width {}, {} queries × {} keys"


def check_recording(recording: Any, needs_values: bool = False) -> None:
    """Raise `ArgumentError` for anything but a recording, with values if these are needed."""
    if not isinstance(recording, Recording):
        raise ArgumentError(
            f"a recording of type {type(recording).__name__}",
            expected="the result of heedful.record or heedful.load",
        )
    captures = recording._captures
    if not captures or (needs_values and any(capture.value is None for capture in captures)):
        raise ArgumentError(
            f"a recording without {'values' if captures else 'a call'}",
            expected="a pass in heedful.record(model, values=True)",
        )


def output(
    recording: Recording, call: HeadCall, recorded_values: bool, rows: Tensor | None = None
) -> Tensor:
    """Return recorded weights times values, (B, h, N, v): fused; by the definition if `rows`, the
    indices of some queries, are passed. Padding rows of the recording keep the output of `call`.

    Raises:
        ArgumentError: other texts, lengths, heads or widths than those of the call.
        RunError: the recorded call is refuted, or was changed by `intervene`.
    """
    captures = _captures_of(recording, call.name)
    if call.number >= len(captures) > 1:
        raise ArgumentError(
            f"call {call.number} of {call.name}, of which {len(captures)} are recorded",
            expected="a recording of as many passes, or of a single pass",
        )
    capture = captures[call.number if len(captures) > 1 else 0]
    _check_sizes(capture, call, capture.value if recorded_values else None)
    outputs, wanted = [], call.rows if rows is None else rows
    for text in range(len(call.query)):
        row = text if len(capture.query) > 1 else 0
        value = None if recorded_values else call.value[text : text + 1]
        recorded, queries = _text_of(capture, row, call.heads, value), capture.tokens[row].queries
        if rows is None:
            new = attend(recorded)[0]
        else:
            new = by_definition(recorded.in_float64(), torch.isin(queries, rows).nonzero()[:, 0])[0]
        new, is_real = new.to(call.value), torch.isin(wanted, queries)
        if not is_real.all():
            index = is_real.nonzero()[:, 0].to(new.device)
            new = call.before[text][:, wanted].index_copy(1, index, new)
        outputs.append(new)
    return torch.stack(outputs)


def _check_sizes(capture: Capture, call: HeadCall, value: Tensor | None) -> None:
    """Raise `ArgumentError` if a recorded call has other sizes than a call."""
    side, own = (capture.query, call.query) if value is None else (value, call.value)
    is_map = value is None and capture.weights is not None  # without queries
    S, H, N, _ = capture.query.shape
    width = own.shape[3] if is_map else side.shape[3]
    sizes = (call.all_heads if capture.heads else H, width, N, capture.key.shape[2])
    B, expected = len(call.query), (call.all_heads, own.shape[3], *call.shape[2:])
    if sizes != expected or S not in (1, B):
        raise ArgumentError(
            f"a recording of {S} texts, {SIZES.format(*sizes)}, for {call.name}",
            expected=f"{B} texts, {SIZES.format(*expected)}",
            cause="texts of unequal lengths, or another model",
        )


def _captures_of(recording: Recording, name: str) -> list[Capture]:
    """Return all recorded calls of a module; raise `RunError` if one of them is refuted."""
    captures = [capture for capture in recording._captures if capture.name == name]
    if not captures:
        names = dict.fromkeys(capture.name for capture in recording._captures)
        raise ArgumentError(f"no call of {name} in the recording", expected=nearest(name, names))
    for capture in captures:
        proof = proof_of(capture.check, next(iter(capture.refutations.values()), ""))
        if proof.word == "refuted" or CHANGED in proof.why:
            raise RunError(f"the recorded call of {name} is {proof.word}: {proof.why}")
    return captures


def _text_of(
    capture: Capture, row: int, heads: tuple[int, ...], value: Tensor | None = None
) -> HeadCall:
    """Return some heads of a recorded sequence without its padding, as a call of one text.

    value: (1, h or G, M, v), for each key of the padded call; default: the recorded values.
    """
    inputs, real = capture.inputs_of(row), capture.tokens[row]
    recorded: Any = capture.value
    numbers = tuple(capture.heads or range(capture.query.shape[1]))
    missing = [head for head in heads if head not in numbers]
    if missing:
        raise ArgumentError(
            f"head {missing[0]} of {capture.name}", expected=f"a recorded head: {list(numbers)}"
        )
    sinks = inputs.sinks if inputs.sinks is None or inputs.sinks.ndim == 1 else inputs.sinks[None]
    call = HeadCall(
        inputs.query[None], inputs.key[None], None if value is not None else recorded[row][None],
        None, inputs.scale, inputs.mask, inputs.bias, inputs.softcap, sinks, heads=numbers,
    ).of_heads(heads)  # fmt: skip
    values: Any = call.value if value is None else value
    if len(real.keys) < values.shape[2]:
        values = values[:, :, real.keys]
    key = call.key
    if key.shape[1] != values.shape[1]:  # one of them has a copy for each query head
        key, values = (per_query_head(side, len(heads) // side.shape[1]) for side in (key, values))
    bias, sinks = (None if t is None else t.to(values.device) for t in (call.bias, call.sinks))
    query, key = call.query.to(values), key.to(values)
    return replace(call, query=query, key=key, value=values, bias=bias, sinks=sinks)


@torch.no_grad()
def mean_output(
    recording: Recording, name: str, heads: tuple[int, ...], per_position: bool
) -> Tensor:
    """Return the mean of recorded outputs over all texts and passes: (h, v), or (h, N, v)."""
    outputs = [
        attend(_text_of(capture, row, heads))[0].double()
        for capture in _captures_of(recording, name)
        for row in range(len(capture.query))
    ]
    if not per_position:
        return torch.cat(outputs, dim=1).mean(dim=1)
    lengths = sorted({output.shape[1] for output in outputs})
    if len(lengths) > 1:
        raise ArgumentError(
            f"recorded texts of {lengths[0]} to {lengths[-1]} tokens",
            expected="texts of equal length for per_position=True",
        )
    return torch.stack(outputs).mean(dim=0)
