"""Whose rows are whose, shown by running each text of a batch alone: its queries and keys come back.

A text alone has its own rows and no others', so that an order of axes that was guessed wrongly, or
a padding that is none, cannot agree.
"""

from __future__ import annotations

import dataclasses
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
    first = [one for one in captures if one.forward == min(one.forward for one in captures)]
    told = [one.texts for one in first if one.texts] + [Inputs(model, arguments, keywords).texts]
    batch = next((texts for texts in told if texts), None)
    if batch is None:
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__} with no batch in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    given = arguments, keywords
    with undisturbed(model), torch.no_grad():
        dim = _settle(first, batch, given, run)
        for capture in first:
            if "padding" in capture.inferred and "texts" not in capture.inferred:
                _unpad(capture, batch, given, dim, run)


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


def _settle(captures: list[Capture], batch: int, given: Any, run: Run) -> int:
    """Compare all calls with those of each text alone; along which axis of inputs the texts are.

    That is the first, or where positions come first the second. Where both have as many, and it was
    not followed which it is, an agreement settles nothing.
    """
    told = {one.texts_dim for one in captures} - {None}
    dims = tuple(told) if len(told) == 1 else (0, 1)
    sizes = {dim: _has(given, batch, dim) for dim in dims if dim is not None}
    tried: list[tuple[int, int, list[str]]] = []
    for dim in [dim for dim, has in sizes.items() if has] or [0]:
        try:
            alone = [_matched(run(*_parts(given, batch, b, dim)), captures) for b in range(batch)]
        except HeedfulError:
            raise
        except Exception as error:
            failed = error
            continue
        differ = [_differ(one, [each[i] for each in alone]) for i, one in enumerate(captures)]
        tried.append((sum(map(bool, differ)), dim, differ))
    if not tried:
        raise ArgumentError(
            f"one text alone ends in {type(failed).__name__}: {failed}",
            expected="inputs with one row for each text",
        ) from failed
    _, dim, differ = min(tried)
    for capture, why in zip(captures, differ, strict=True):
        if not why and len(tried) == 1:
            capture.inferred.pop("texts", None)
        elif why:
            capture.against.update(dict.fromkeys(range(len(capture.query)), why))
    return dim


OTHERS = "a text alone makes other calls of this module"


def _has(value: Any, batch: int, dim: int) -> bool:
    """Whether some tensor has an axis of so many texts there."""
    if isinstance(value, Tensor):
        return value.ndim > dim and value.shape[dim] == batch
    inner = value.values() if isinstance(value, dict) else value
    return isinstance(value, dict | list | tuple) and any(_has(one, batch, dim) for one in inner)


def _parts(value: Any, batch: int, b: int, dim: int) -> Any:
    """The part of one text of everything that has one for each."""
    return mapped(value, lambda one: one.narrow(dim, b, 1) if _has(one, batch, dim) else one)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Inputs with every tensor in them changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(mapped(one, change) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value) if one.init]
        changed = {name: mapped(getattr(value, name), change) for name in names}
        return dataclasses.replace(value, **changed)
    return value


def _matched(alone: list[Capture], captures: list[Capture]) -> list[Capture | None]:
    """The same calls in the same order, by the names of their modules."""
    left: dict[str, list[Capture]] = {}
    for one in alone:
        left.setdefault(one.name, []).append(one)
    return [left[one.name].pop(0) if left.get(one.name) else None for one in captures]


def _differ(capture: Capture, alone: list[Capture | None]) -> str:
    """What shows that the sequences of a call are not those of the texts; nothing if none does."""
    parts = [one for one in alone if one is not None]
    if len(parts) < len(alone):
        return OTHERS
    rows = [(b, one, p) for b, one in enumerate(parts) for p in range(len(one.query))]
    if len(rows) != len(capture.query):
        return f"the texts alone are {len(rows)} sequences, and not {len(capture.query)}"
    for sequence, (b, one, p) in enumerate(rows):
        if not _agree(capture, sequence, one, p):
            return f"sequence {sequence} is not of text {b}, which alone has other queries and keys"
    return ""


def _agree(capture: Capture, sequence: int, alone: Capture, part: int) -> bool:
    ours, theirs = capture.causes(sequence), alone.causes(part)
    if ours.shape != theirs.shape:
        return False
    N = ours.shape[1]
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


def _unpad(capture: Capture, batch: int, given: Any, dim: int, run: Run) -> None:
    """Run each text without what was taken for its padding."""
    M = capture.key.shape[2]
    for b in range(batch):
        keys = capture.layouts[b].keys
        try:
            calls = run(*_trimmed(_parts(given, batch, b, dim), M, keys, dim))
        except Exception:  # of the model's own, which wants all of its inputs
            break
        alone = next((one for one in calls if one.name == capture.name), None)
        if alone is None or len(capture.query) != batch or not _agree(capture, b, alone, 0):
            break
    else:
        capture.inferred.pop("padding", None)
        return
    capture.inferred["padding"] += "; without it a text alone has other queries and keys"


def _trimmed(value: Any, length: int, keys: Tensor, texts: int) -> Any:
    """Inputs without padding: everything with an axis of so many tokens."""

    def trim(tensor: Tensor) -> Tensor:
        for dim in range(tensor.ndim):
            if dim != texts and tensor.shape[dim] == length:
                tensor = tensor.index_select(dim, keys.to(tensor.device))
        return tensor

    return mapped(value, trim)
