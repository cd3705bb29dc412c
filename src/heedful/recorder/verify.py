"""Whose rows are whose, shown by running each text of a batch alone: its queries and keys come back.

A text alone has its own rows and no others', so that an order of axes that was guessed wrongly, or
a padding that is none, cannot agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError
from heedful.ops.causes import weights
from heedful.recorder.capture import Capture
from heedful.recorder.inputs import Inputs

# How far numbers of a text alone may be from those in a batch, whose kernels round otherwise, in
# units of the largest of them
NEAR = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
ROWS = 8  # of each sequence that are compared
Run = Callable[[tuple, dict[str, Any]], list[Capture]]


def verify(captures: list[Capture], model: nn.Module, inputs: Any, run: Run) -> None:
    """Compare every sequence of the first pass with its text alone, and note what came out.

    Args:
        captures: of a recording; what is settled is no longer inferred, what differs is refuted.
        model: that was recorded.
        inputs: that it was given: a mapping of keywords, a list of arguments, or one tensor.
        run: records a pass of the model.

    Raises:
        ArgumentError: inputs of which no batch is known, or which the model does not take.
    """
    arguments, keywords = _called(inputs)
    batch = Inputs(model, arguments, keywords).batch().texts
    if batch is None:
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__} with no batch in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    first = [one for one in captures if one.forward == min(one.forward for one in captures)]
    with undisturbed(model), torch.no_grad():
        found = _alone(batch, arguments, keywords, run, first)
        for place, capture in enumerate(first):
            _settle(capture, [one[place] if one else None for one in found])
        for capture in first:
            if "padding" in capture.inferred and "texts" not in capture.inferred:
                _unpad(capture, batch, arguments, keywords, run)


def _called(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, list | tuple) else ((inputs,), {})


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, after which everything is as it was: modes, buffers, random states."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    drawn = [
        (one, one.get_state())
        for module in model.modules()
        for one in vars(module).values()
        if isinstance(one, torch.Generator)
    ]
    try:
        with torch.random.fork_rng():
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for buffer, before in buffers:
            with torch.no_grad():
                buffer.copy_(before)
        for generator, state in drawn:
            generator.set_state(state)


def _alone(
    batch: int, arguments: tuple, keywords: dict, run: Run, captures: list[Capture]
) -> list[list[Capture] | None]:
    """The calls of each text alone, matched with those of the batch; None where others came.

    Texts stand along the first axis of what has so many, or along the second, where positions
    come first.
    """
    for dim in (0, 1):
        try:
            found = [
                _matched(run(*_parts((arguments, keywords), batch, b, dim)), captures)
                for b in range(batch)
            ]
        except HeedfulError:
            raise
        except Exception as error:
            if dim:
                raise ArgumentError(
                    f"one text alone ends in {type(error).__name__}: {error}",
                    expected="inputs with one row for each text",
                ) from error
            continue
        if any(one is not None for one in found) or dim:
            return found
    return []


def _parts(value: Any, batch: int, b: int, dim: int) -> Any:
    """The part of one text of everything that has one for each."""
    if isinstance(value, Tensor):
        has_texts = value.ndim > dim and value.shape[dim] == batch
        return value.narrow(dim, b, 1) if has_texts else value
    if isinstance(value, dict):
        return {key: _parts(one, batch, b, dim) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_parts(one, batch, b, dim) for one in value)
    return value


def _matched(alone: list[Capture], captures: list[Capture]) -> list[Capture] | None:
    """The same calls in the same order, by the names of their modules."""
    left: dict[str, list[Capture]] = {}
    for one in alone:
        left.setdefault(one.name, []).append(one)
    try:
        return [left[one.name].pop(0) for one in captures]
    except (KeyError, IndexError):
        return None


def _settle(capture: Capture, alone: list[Capture | None]) -> None:
    if any(one is None for one in alone):
        capture.inferred["texts"] = "which sequence is of which text: alone, one makes other calls"
        return
    parts = [one for one in alone if one is not None]
    rows = [(one, p) for one in parts for p in range(len(one.query))]
    if len(rows) != len(capture.query):
        _against(capture, 0, f"the texts alone are {len(rows)} sequences, not {len(capture.query)}")
        return
    texts = [b for b, one in enumerate(parts) for _ in range(len(one.query))]
    for sequence, (one, p) in enumerate(rows):
        if not _agree(capture, sequence, one, p):
            _against(capture, sequence, f"text {texts[sequence]} alone has other queries and keys")
    if not capture.against:
        capture.inferred.pop("texts", None)


def _against(capture: Capture, sequence: int, why: str) -> None:
    """One sequence that is another's shows that the order is wrong, and so all are refuted."""
    for every in range(len(capture.query)):
        capture.against.setdefault(every, f"its sequences are not the texts: {why}")
    capture.against[sequence] = f"its sequences are not the texts: {why}"


def _agree(capture: Capture, sequence: int, alone: Capture, part: int) -> bool:
    ours, theirs = capture.causes(sequence), alone.causes(part)
    if ours.shape != theirs.shape:
        return False
    _, N, M = ours.shape
    near = NEAR.get(capture.query.dtype, 1e-3)
    if ours.query.shape[-1] == 1:  # weights alone
        rows = torch.linspace(0, N - 1, min(N, ROWS)).long()
        one, other = weights(ours, queries=rows), weights(theirs, queries=rows)
        return bool((one - other).abs().max() <= near / 10)
    return _is_near(ours.query, theirs.query, near) and _is_near(ours.key, theirs.key, near)


def _is_near(one: Tensor, other: Tensor, near: float) -> bool:
    if one.shape != other.shape:
        return False
    size = other.abs().amax().clamp(min=1e-30)
    return not one.numel() or bool((one - other).abs().amax() <= near * size)


def _unpad(
    capture: Capture, batch: int, arguments: tuple, keywords: dict, run: Run
) -> None:
    """Run each text without what was taken for its padding."""
    parts = len(capture.query) // batch
    M = capture.key.shape[2]
    for b in range(batch if parts == 1 else 0):
        keys = capture.layouts[b].keys
        given = _parts((arguments, keywords), batch, b, 0)
        try:
            calls = run(*_trimmed(given, M, keys))
            [alone] = [one for one in calls if one.name == capture.name][:1]
        except Exception:
            break
        if not _agree(capture, b, alone, 0):
            break
    else:
        if parts == 1:
            capture.inferred.pop("padding", None)
            return
    capture.inferred["padding"] += "; without it a text alone has other queries and keys"


def _trimmed(value: Any, length: int, keys: Tensor) -> Any:
    """Everything with an axis of so many tokens, without its padding."""
    if isinstance(value, Tensor):
        for dim in range(1, value.ndim):
            if value.shape[dim] == length:
                value = value.index_select(dim, keys.to(value.device))
        return value
    if isinstance(value, dict):
        return {key: _trimmed(one, length, keys) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_trimmed(one, length, keys) for one in value)
    return value
