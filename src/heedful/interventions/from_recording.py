"""Reads the calls of another run: recorded weights with this run's values, or with recorded ones.

Sizes: S recorded sequences, H heads, N queries, M keys, v width of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heedful.configuration import nearest
from heedful.errors import ArgumentError, RunError
from heedful.interventions.head_call import HeadCall, attend
from heedful.ops.definition import per_query_head
from heedful.recording import Recording
from heedful.recording.capture import Capture
from heedful.recording.proof import proof_of


@dataclass
class RecordedText:
    """The recorded call of one text, without its padding, as a call of a single sequence.

    queries: the indices of its queries in the padded call.
    """

    call: HeadCall
    queries: Tensor

    def placed(self, new: Tensor, output: Tensor) -> Tensor:
        """Return an output (h, N, v) with `new` (h, n, v) in the rows of the real queries."""
        if len(self.queries) == output.shape[1]:
            return new
        return output.index_copy(1, self.queries.to(output.device), new)


def check_recording(recording: Any, needs_values: bool = False) -> None:
    """Raise `ArgumentError` for anything but a recording, with values if these are needed."""
    if not isinstance(recording, Recording):
        raise ArgumentError(
            f"a recording of type {type(recording).__name__}",
            expected="the result of heedful.record or heedful.load",
        )
    captures = recording._captures
    if not captures or (needs_values and any(call.value is None for call in captures)):
        raise ArgumentError(
            "a recording without values" if captures else "a recording without a call",
            expected="heedful.record(model, values=True)" if captures else "a recorded pass",
        )


def texts_for(recording: Recording, call: HeadCall, recorded_values: bool) -> list[RecordedText]:
    """Return the recorded call that corresponds to `call`, as a list of one call for each text.

    Raises:
        ArgumentError: other texts, lengths, heads or widths than those of the call.
        RunError: the recorded call is refuted.
    """
    captures = captures_of(recording, call)
    if call.number >= len(captures) > 1:
        raise ArgumentError(
            f"call {call.number} of {call.name}, of which {len(captures)} are recorded",
            expected="a recording of as many passes, or of a single pass",
        )
    capture = captures[call.number if len(captures) > 1 else 0]
    _check_model(capture, call, recorded_values)
    (S, _, N, _), M = capture.query.shape, capture.key.shape[2]
    if (N, M) != call.shape[2:] or S not in (1, len(call.query)):
        raise ArgumentError(
            f"a recording of {S} texts, {N} queries × {M} keys, for a call of {call.name} with "
            f"{len(call.query)} texts, {call.shape[2]} queries × {call.shape[3]} keys",
            expected="the same numbers", cause="texts of unequal lengths",
        )  # fmt: skip
    values: Any = call.value
    return [
        text_of(capture, text if S > 1 else 0, call, None if recorded_values else values[text])
        for text in range(len(call.query))
    ]


def captures_of(recording: Recording, call: HeadCall) -> list[Capture]:
    """Return all recorded calls of the module of a call."""
    captures = [item for item in recording._captures if item.name == call.name]
    if not captures:
        names = dict.fromkeys(item.name for item in recording._captures)
        raise ArgumentError(
            f"no call of {call.name} in the recording", expected=nearest(call.name, names)
        )
    return captures


def text_of(
    capture: Capture, row: int, call: HeadCall, value: Tensor | None = None
) -> RecordedText:
    """Return a recorded sequence with the heads of `call`, and with a value (h or G, M, v) for each
    key of the padded call; default: the recorded values."""
    inputs, real = capture.inputs_of(row), capture.tokens[row]
    heads = capture.heads or range(capture.query.shape[1])
    recorded: Any = capture.value
    sinks = inputs.sinks if inputs.sinks is None or inputs.sinks.ndim == 1 else inputs.sinks[None]
    text = HeadCall(
        inputs.query[None], inputs.key[None], None if value is not None else recorded[row][None],
        None, inputs.scale, inputs.mask, inputs.bias, inputs.softcap, sinks, name=call.name,
        heads=tuple(heads),
    ).of_heads(call.heads)  # fmt: skip
    values: Any = text.value if value is None else value[None]
    if len(real.keys) < values.shape[2]:
        values = values[:, :, real.keys]
    key, H = text.key, len(call.heads)
    if key.shape[1] != values.shape[1]:  # one of them has a copy for each query head
        key, values = (per_query_head(side, H // side.shape[1]) for side in (key, values))
    tensors = {"query": text.query, "key": key, "value": values}
    tensors = {name: tensor.to(call.query) for name, tensor in tensors.items()}
    bias, sinks = (None if t is None else t.to(call.query.device) for t in (text.bias, text.sinks))
    return RecordedText(replace(text, **tensors, bias=bias, sinks=sinks), real.queries)


def _check_model(capture: Capture, call: HeadCall, needs_values: bool) -> None:
    """Raise an error for a refuted call, or a call with other heads than those of `call`."""
    proof = proof_of(capture.check, next(iter(capture.refutations.values()), ""))
    if proof.word == "refuted":
        raise RunError(f"the recorded call of {call.name} is refuted: {proof.why}")
    heads, width = capture.heads or range(capture.query.shape[1]), call.output.shape[3]
    missing = [head for head in call.heads if head not in heads]
    if missing and capture.heads:
        raise ArgumentError(
            f"head {missing[0]} of {call.name}", expected=f"a recorded head: {list(heads)}"
        )
    side, expected = capture.query, (call.all_heads, call.query.shape[3])
    if needs_values and capture.value is not None:
        side, expected = capture.value, (call.all_heads, width)
    received = (len(heads) if capture.heads is None else call.all_heads, side.shape[3])
    if capture.weights is not None and not needs_values:  # a map without queries
        received = (received[0], expected[1])
    if received != expected:
        raise ArgumentError(
            f"a recording of {received[0]} heads of width {received[1]} for {call.name}",
            expected=f"{expected[0]} heads of width {expected[1]}",
            cause="a recording of another model",
        )


@torch.no_grad()
def mean_output(recording: Recording, call: HeadCall, per_position: bool) -> Tensor:
    """Return the mean of recorded outputs over all texts and passes: (h, v), or (h, N, v)."""
    outputs = []
    for capture in captures_of(recording, call):
        _check_model(capture, call, needs_values=True)
        for row in range(len(capture.query)):
            outputs.append(attend(text_of(capture, row, call).call)[0].double())
    if not per_position:
        return torch.cat(outputs, dim=1).mean(dim=1)
    lengths = sorted({output.shape[1] for output in outputs})
    if len(lengths) > 1:
        raise ArgumentError(
            f"recorded texts of {lengths[0]} to {lengths[-1]} tokens",
            expected="texts of equal length for per_position=True",
        )
    return torch.stack(outputs).mean(dim=0)
