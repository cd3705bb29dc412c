"""Verifies which rows are of which text: each text of a batch runs alone, and is compared.

A text alone has its own queries and keys and no others'. So an order of axes that was guessed
wrongly, or a padding that is none, cannot agree with it. What disagrees is refuted where its
queries and keys are found in another text or head, or where the same number of weights is in other
sequences. Where they are found nowhere, the texts of a batch may change each other, as by a mean
over the batch; that settles nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError
from heedful.ops.causes import Causes
from heedful.ops.cells import weights
from heedful.recorder.kept.capture import Capture
from heedful.recorder.sequences.inputs import Inputs

# How far numbers of a text alone may be from those in a batch, whose kernels round otherwise, in
# units of the largest of them
NEAR = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
ROWS = 8  # how many rows of each sequence are compared
Run = Callable[[tuple, dict[str, Any]], list[Capture]]


def verify(captures: list[Capture], model: nn.Module, inputs: Any, run: Run) -> None:
    """Compare every sequence of the first pass with its text alone, and note what came out.

    Args:
        captures: the calls; what is settled is no longer inferred, what differs is refuted.
        model: the model that was recorded.
        inputs: what it was given: a mapping of keywords, a list of arguments, or one tensor.
        run: a function that records a pass of the model.

    Raises:
        ArgumentError: no batch is known of the inputs, or the model does not take them.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}", expected="the module that was recorded"
        )
    arguments, keywords = _called(inputs)
    if not any(isinstance(one, Tensor) and one.ndim for one in _leaves((arguments, keywords))):
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__} with no tensor in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    first = [one for one in captures if one.pass_index == min(one.pass_index for one in captures)]
    told = [one.texts for one in first if one.texts] + [Inputs(model, arguments, keywords).texts]
    batch = next((texts for texts in told if texts), None)
    if batch is None:
        raise ArgumentError(
            f"inputs of type {type(inputs).__name__} with no batch in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    given = arguments, keywords
    for capture in first:
        capture.against.clear()  # of an earlier time
    with undisturbed(model), torch.no_grad():
        _check_repeated(first, given, run)
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
    """Run in evaluation mode, and put everything back: modes, buffers and random states."""
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, one, None if one is None else one.detach().clone())
        for module in model.modules()
        for name, one in module._buffers.items()
    ]
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
        for module, name, buffer, before in buffers:
            module._buffers[name] = buffer  # a pass may have put another one in its place
            if buffer is not None and before is not None and not torch.equal(buffer, before):
                with torch.no_grad():
                    buffer.copy_(before)
        for generator, state in drawn:
            generator.set_state(state)


def _ran(run: Run, given: Any) -> list[Capture]:
    """The calls of a pass.

    Raises:
        ArgumentError: inputs that the model does not take.
    """
    try:
        return run(*given)
    except HeedfulError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"inputs with which the model ends in {type(error).__name__}: {error}",
            expected="what it was called with, with one row for each text",
        ) from error


def _check_repeated(captures: list[Capture], given: Any, run: Run) -> None:
    """Refuse inputs with which the model does not do what was recorded.

    Raises:
        ArgumentError: other inputs, or a pass that was not in evaluation mode.
    """
    again = _matched(_ran(run, given), captures)
    for capture, one in zip(captures, again, strict=True):
        same = one is not None and len(one.query) == len(capture.query)
        if (
            one is None
            or not same
            or not all(_agree(capture, at, one, at) for at in range(len(capture.query)))
        ):
            raise ArgumentError(
                f"inputs with which {capture.name} does something else than was recorded",
                expected="the inputs of the pass that was recorded",
                cause="other inputs, a pass in training mode, whose dropout is not repeated, or a "
                "model that draws at random",
            )


def _settle(captures: list[Capture], batch: int, given: Any, run: Run) -> int:
    """Compare all calls with those of each text alone; returns the dimension of inputs with texts.

    That is the first, or where positions come first the second. Where both have as many, and it was
    not followed which it is, an agreement settles nothing.
    """
    told = {one.texts_dim for one in captures} - {None}
    dims = tuple(told) if len(told) == 1 else (0, 1)
    sizes = {dim: _has(given, batch, dim) for dim in dims if dim is not None}
    if batch == 1:
        sizes = {0: True}  # all of the inputs are of the one text
    tried: list[tuple[int, int, list[_Difference | None]]] = []
    if not any(sizes.values()):
        raise ArgumentError(
            f"inputs in which no tensor has {batch} rows",
            expected=f"the inputs of the pass that was recorded, of {batch} texts",
        )
    for dim in [dim for dim, has in sizes.items() if has]:
        try:
            alone = [
                _matched(_ran(run, _parts(given, batch, b, dim)), captures) for b in range(batch)
            ]
        except ArgumentError as error:
            failed = error
            continue
        differ = [_differ(one, [each[i] for each in alone]) for i, one in enumerate(captures)]
        tried.append((sum(one is not None for one in differ), dim, differ))
    if not tried:
        raise failed
    _, dim, differ = min(tried, key=lambda one: one[:2])
    for capture, found in zip(captures, differ, strict=True):
        if found is None and len(tried) == 1:
            capture.inferred.pop("texts", None)
        elif found is not None and found.refutes:
            capture.against.update(dict.fromkeys(range(len(capture.query)), found.why))
        elif found is not None and "texts" in capture.inferred:
            before = capture.inferred["texts"].split(UNSETTLED)[0]
            capture.inferred["texts"] = f"{before}{UNSETTLED}{found.why}"
    return dim


class _Difference(NamedTuple):
    """A difference between a call and those of its texts alone.

    refutes: whether it shows the call to be wrong; else it only leaves something unsettled.
    """

    why: str
    refutes: bool = True


UNSETTLED = ", which texts alone do not settle: "
OTHER_CALLS = _Difference("a text alone makes other calls of this module", refutes=False)


def _has(value: Any, batch: int, dim: int) -> bool:
    """Whether some tensor of the inputs has the size of the batch in this dimension."""
    if isinstance(value, Tensor):
        return value.ndim > dim and value.shape[dim] == batch
    return any(isinstance(one, Tensor) and _has(one, batch, dim) for one in _leaves(value))


def _leaves(value: Any) -> list[Any]:
    """All tensors in the inputs, however deep."""
    found: list[Any] = []
    mapped(value, lambda one: found.append(one) or one)  # type: ignore[func-returns-value]
    return found


def _parts(value: Any, batch: int, b: int, dim: int) -> Any:
    """The inputs of one text: from each tensor that has an axis of texts, its part.

    Where tokens have texts second, a mask of padding or a table of ids may still have them first.
    """
    if batch == 1:
        return value

    def part(one: Tensor) -> Tensor:
        if _has(one, batch, dim):
            return one.narrow(dim, b, 1)
        is_table = one.ndim == 2 and not one.is_floating_point()
        return one.narrow(0, b, 1) if dim == 1 and is_table and _has(one, batch, 0) else one

    return mapped(value, part)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The inputs with every tensor in them changed by a function."""
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
    """For each call, the one of the text alone that is of the same module, in order; else None."""
    left: dict[str, list[Capture]] = {}
    for one in alone:
        left.setdefault(one.name, []).append(one)
    return [left[one.name].pop(0) if left.get(one.name) else None for one in captures]


def _differ(capture: Capture, alone: list[Capture | None]) -> _Difference | None:
    """The difference between a call's sequences and those of the texts alone; None without one."""
    parts = [one for one in alone if one is not None]
    if len(parts) < len(alone):
        return OTHER_CALLS
    rows = [(b, one, p) for b, one in enumerate(parts) for p in range(len(one.query))]
    if len(capture.query) == 1 and len(rows) == len(parts) and _is_packed(capture, parts):
        return None
    if len(rows) != len(capture.query):
        why = f"the texts alone are {len(rows)} sequences, and not {len(capture.query)}"
        # as many numbers in another order were arranged wrongly; others are another call's
        return _Difference(why, sum(map(_entries, parts)) == _entries(capture))
    for sequence, (b, one, p) in enumerate(rows):
        if _agree(capture, sequence, one, p):
            continue
        each = [other.causes(place) for _, other, place in rows]
        if _is_elsewhere(capture.causes(sequence), each, sequence):
            return _Difference(
                f"sequence {sequence} is not of text {b}, which alone has other queries and keys"
            )
        why = f"text {b} alone has other queries and keys, and no other text has those of sequence"
        return _Difference(f"{why} {sequence}", refutes=False)
    return None


def _is_packed(capture: Capture, parts: list[Capture]) -> bool:
    """Whether the one sequence of a call is the texts one after the other, as models of images
    pack them: its queries are, and its keys are too, or are the same for each text.
    """
    ours, alone = capture.causes(0), [one.causes(0) for one in parts]
    if _is_of_weights(ours) or len({(len(one.query), len(one.key)) for one in alone}) > 1:
        return False
    near = NEAR.get(capture.query.dtype, 1e-3)
    if not _is_near(ours.query, torch.cat([one.query for one in alone], dim=1), near):
        return False
    keys = [one.key for one in alone]
    is_shared = all(_is_near(ours.key, one, near) for one in keys)
    return is_shared or _is_near(ours.key, torch.cat(keys, dim=1), near)


def _is_elsewhere(ours: Causes, alone: list[Causes], place: int) -> bool:
    """Whether a sequence has the queries and keys of other heads or texts rather than its own.

    Args:
        ours: what is kept of the sequence.
        alone: what is kept of all sequences of the texts alone.
        place: which of these it should be.
    """
    votes = 0
    for mine, *theirs in zip(_vectors(ours), *map(_vectors, alone), strict=True):
        rows = torch.linspace(0, mine.shape[1] - 1, min(mine.shape[1], ROWS)).long().unique()
        mine = mine[:, rows]
        largest = max((float(one.abs().max()) for one in theirs if one.numel()), default=0.0)
        near = NEAR.get(mine.dtype, 1e-3) * largest
        own = _found(mine, theirs[place], near)
        flat = mine.flatten(0, 1)[None]
        found = torch.cat([_found(flat, one.flatten(0, 1)[None], near) for one in theirs])
        if bool(own.all()) and bool(found.all()):
            continue  # learned keys, say, are those of every text, and tell nothing
        elsewhere = found.any(dim=0).view_as(own) & ~own
        if int(elsewhere.sum()) < max(1, int(own.sum())):
            return False
        votes += 1
    return votes > 0


def _is_of_weights(of: Causes) -> bool:
    """Whether only weights are kept of a call, and its queries are a mere place for them."""
    return of.query.shape[-1] == 1


def _vectors(of: Causes) -> list[Tensor]:
    """The queries and keys of a sequence, (heads, rows, width); of weights alone, these."""
    return [weights(of)] if _is_of_weights(of) else [of.query, of.key]


def _found(vectors: Tensor, among: Tensor, near: float) -> Tensor:
    """Which of the vectors (H, n, d) are among others of their head, (H, m, d)."""
    if len(vectors) != len(among) or vectors.shape[-1] != among.shape[-1]:
        return torch.zeros(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
    apart = torch.cdist(vectors.float(), among.float(), p=math.inf)
    return (apart <= near).any(dim=-1)


def _entries(capture: Capture) -> int:
    """The number of weights in all maps of a call."""
    return math.prod(capture.query.shape[:3]) * capture.key.shape[2]


def _agree(capture: Capture, sequence: int, alone: Capture, part: int) -> bool:
    ours, theirs = capture.causes(sequence), alone.causes(part)
    if ours.shape != theirs.shape:
        return False
    N = ours.shape[1]
    near = NEAR.get(capture.query.dtype, 1e-3)
    if _is_of_weights(ours):
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
    """Run each text without what was taken for its padding, which is settled if all agree."""
    M = capture.key.shape[2]
    for b in range(batch):
        keys = capture.layouts[b].keys
        try:
            calls = _ran(run, _trimmed(_parts(given, batch, b, dim), M, keys, dim))
        except ArgumentError:  # of a model that wants all of its inputs
            break
        alone = next((one for one in calls if one.name == capture.name), None)
        if alone is None or len(capture.query) != batch or not _agree(capture, b, alone, 0):
            break
    else:
        capture.inferred.pop("padding", None)
        return
    capture.inferred["padding"] += "; without it a text alone has other queries and keys"


def _trimmed(value: Any, length: int, keys: Tensor, texts: int) -> Any:
    """The inputs of a text without its padding, cut from each tensor with an axis of its length."""

    def trim(tensor: Tensor) -> Tensor:
        for dim in range(tensor.ndim):
            if dim != texts and tensor.shape[dim] == length:
                tensor = tensor.index_select(dim, keys.to(tensor.device))
        return tensor

    return mapped(value, trim)
