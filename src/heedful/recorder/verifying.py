"""`recording.verify`: probes a model to determine the axes of calls in the first recorded pass.

The model runs again with the same inputs, to compare queries and keys with the recorded ones, and
then with changed inputs (`axes/probe.py`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.axes.probe import ModelInputs, ProbedCall, ProbeResult, Probing, Run
from heedful.recorder.axes.probed_order import NONE, SEVERAL, UNCHANGED
from heedful.recorder.axes.usual_order import BLOCK, HEADS, PARTS, Order, widths_of
from heedful.recorder.doors.tape_cells import KEYS, QUERIES, Cells
from heedful.recorder.finalizing import Finalizer
from heedful.recorder.module_stack import Frame
from heedful.recorder.observed_call import AXES
from heedful.recorder.standard_axes import PendingCall, arrange, cells_of_call, in_order
from heedful.recording import Recording
from heedful.recording.capture import Capture
from heedful.recording.proof import Layout

OTHER_PASS = "in the pass that recording.verify probed, its axes are in another order"
Record = Callable[[nn.Module], AbstractContextManager[Recording]]


def verify(
    record: Record, finalizer: Finalizer, recording: Recording, model: nn.Module, inputs: Any,
    progress: Callable[[float], None],
) -> None:  # fmt: skip
    """Probe a model and correct the calls of the first pass of its recording.

    Args:
        record: `heedful.record` with the options of the recording.
        finalizer: the finalizer of the recording.
        recording, model, inputs, progress: as in `Recording.verify`.

    Raises:
        ArgumentError: not a module, inputs that are not those of the recording, or a model whose
            calls differ between two passes.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}", expected="the module that was recorded"
        )
    arguments = _arguments(inputs)
    pass_inputs = Inputs(Frame("", model, *arguments))
    if not any(pass_inputs.shapes.values()):
        raise ArgumentError(
            "inputs with no tensor in them",
            expected="the arguments of the model: a tensor, a list, or a dictionary of keywords",
        )
    runs = _ModelRuns(record, model)
    with torch.no_grad(), _restored(model):
        probing = Probing(model, arguments, runs, progress)
        captures = _captures_of(recording, runs.first_calls)
        _check_inputs(captures, runs.first_calls, finalizer)
        results, dim = _probe(probing, _text_counts(pass_inputs, runs.first_calls))
        for pending, capture, result in zip(runs.first_calls, captures, results, strict=True):
            _apply(recording, finalizer, pending, capture, result, has_ids=dim == 0)
    progress(1.0)


class _ModelRuns:
    """Runs and records a model; `first_calls` are the calls of the first run."""

    def __init__(self, record: Record, model: nn.Module) -> None:
        self.record, self.model = record, model
        self.first_calls: list[PendingCall] = []
        self._modules = dict(model.named_modules())

    def __call__(self, arguments: tuple, keywords: dict[str, Any]) -> list[ProbedCall]:
        torch.manual_seed(0)  # random draws are the same in each pass
        with self.record(self.model) as recording:
            self.model(*arguments, **keywords)
            calls = recording.pop_pending()
        self.first_calls = self.first_calls or calls
        return [
            ProbedCall(self._run(call), cells_of_call(call.observed), call.observed.axes == AXES)
            for call in calls
        ]

    def _run(self, pending: PendingCall) -> Run:
        """Return the innermost run of a module with projections; probing changes its inputs."""
        projecting = (run for run in reversed(pending.runs) if widths_of(self._modules[run[0]]))
        return next(projecting, pending.runs[0])


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore modes, buffers and random states at the end."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module._buffers, name, buffer, buffer.detach().clone(), _version(buffer))
               for module in model.modules()
               for name, buffer in module._buffers.items() if buffer is not None]  # fmt: skip
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.eval()
        try:
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            for module_buffers, name, buffer, original, version in buffers:
                module_buffers[name] = buffer
                if version != _version(buffer):  # else keep the version: autograd may rely on it
                    buffer.copy_(original)


def _version(tensor: Tensor) -> float:
    """Return how often a tensor was changed in place; NaN (never equal) for inference tensors."""
    return math.nan if tensor.is_inference() else tensor._version


def _arguments(inputs: Any) -> ModelInputs:
    """Return arguments and keywords from a mapping, a list of arguments, or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def _text_counts(inputs: Inputs, calls: list[PendingCall]) -> list[tuple[int, int]]:
    """Return each possible number of texts, with the dimension along which inputs hold texts."""
    shapes = [shape for shape in inputs.shapes.values() if shape]
    lengths = dict.fromkeys([*(call.observed.query.shape[-2] for call in calls), 0])
    counts = dict.fromkeys(count for length in lengths for count in inputs.texts(length) if count)
    tables = [shape for shape in shapes if len(shape) > 1]
    pairs = [(1, 0)] if 1 in counts else []
    pairs += [(count, dim) for count in counts for dim in (0, 1)
              if count > 1 and any(shape[dim] == count for shape in tables)]  # fmt: skip
    return pairs or [(next(iter(counts), 1), 0)]


def _captures_of(recording: Recording, rerun: list[PendingCall]) -> list[Capture | None]:
    """Return the recorded call for each call of the rerun; None if it was not recorded."""
    first_pass = min((call.pass_index for call in recording._captures), default=0)
    by_number = {call.index: call for call in recording._captures if call.pass_index == first_pass}
    return [by_number.get(pending.number) for pending in rerun]


def _check_inputs(
    captures: list[Capture | None], rerun: list[PendingCall], finalizer: Finalizer
) -> None:
    """Raise `ArgumentError` if the rerun has other queries and keys than the recording."""
    for capture, pending in zip(captures, rerun, strict=True):
        if capture is not None and not _is_same(capture, pending, finalizer):
            raise ArgumentError(
                f"inputs for which {capture.name} has other queries and keys than were recorded",
                expected="the inputs of the first pass that was recorded",
                cause="other inputs, a recording in training mode with dropout, or a model that "
                "draws random numbers",
            )


def _is_same(capture: Capture, pending: PendingCall, finalizer: Finalizer) -> bool:
    """Whether a call of the rerun has the recorded queries and keys."""
    if capture.layout.word == "verified":  # its rows may be in another order
        cells = cells_of_call(pending.observed)
        rerun = [side.flatten().sort().values for side in (cells.query, cells.key)]
        recorded = [side.flatten().sort().values for side in (capture.query, capture.key)]
        if finalizer.heads is not None:  # the rows of these heads cannot be selected
            return capture.name == pending.name
    else:
        observed = arrange(pending, finalizer.axes).observed
        if finalizer.heads is not None and pending.observed.axes != AXES:
            observed = observed.of_heads(finalizer.heads)
        rerun, recorded = [observed.query, observed.key], [capture.query, capture.key]
    return capture.name == pending.name and all(map(_is_near, recorded, rerun))


def _is_near(recorded: Tensor, rerun: Tensor) -> bool:
    if recorded.shape != rerun.shape or not recorded.numel():
        return recorded.shape == rerun.shape
    return not bool((recorded.double() - rerun).abs().max() > 1e-2 * rerun.abs().max())


def _probe(probing: Probing, counts: list[tuple[int, int]]) -> tuple[list[ProbeResult], int]:
    """Probe with each (number, dimension) of texts until the axes of all calls are settled. Return
    the results with the fewest unsettled calls, and the dimension of their texts."""

    def unsettled(attempt: tuple[list[ProbeResult], int]) -> int:
        return sum(bool(call.why) or bool((call.texts == SEVERAL).any()) for call in attempt[0])

    attempts: list[tuple[list[ProbeResult], int]] = []
    for texts, dim in counts:
        try:
            attempts.append((probing.probe(texts, dim), dim))
        except ArgumentError:  # for example, the changed inputs do not fit each other
            if not attempts and (texts, dim) == counts[-1]:
                raise
            continue
        if not unsettled(attempts[-1]):
            break
    return min(attempts, key=unsettled)


def _apply(
    recording: Recording, finalizer: Finalizer, pending: PendingCall, capture: Capture | None,
    result: ProbeResult, has_ids: bool,
) -> None:  # fmt: skip
    """Correct a recorded call by its probe result; drop its token ids unless `has_ids`."""
    taped = pending.observed.taped
    if taped is not None and not taped.has_product:  # then there are no queries and keys to probe
        return
    cells, order, why = cells_of_call(pending.observed), result.order, result.why
    if order is not None and not _fits(order, cells, pending.widths):
        why = f"{order.count(HEADS)} heads do not fit the widths of the module"
        order = None
    if order is None:
        if capture is not None and pending.observed.axes == AXES:
            _compare_texts(capture, result.texts)
        elif capture is not None and capture.layout.word != "told" and why != UNCHANGED:
            reasons = filter(None, (capture.layout.why, f"probing did not find its axes: {why}"))
            capture.layout = Layout("guessed", "; ".join(reasons))
        return
    is_block = order.count(KEYS) == 1 < order.count(QUERIES)
    layout = Layout("guessed", BLOCK) if is_block else Layout("verified")
    try:
        ordered = in_order(pending, cells, order, layout)
    except TypeError:  # the recording missed the call, for another reason than its axes
        return
    texts = {int(text) for text in result.texts.unique() if text >= 0}
    if ordered.texts == 1 and len(texts) == 1:  # a call of one text, as in a loop over texts
        of_texts = max(1, *(call.texts for call in recording._captures), max(texts) + 1)
        ordered = ordered._replace(first=texts.pop(), of_texts=of_texts)
    verified = finalizer(pending, ordered)
    if verified is None:
        return
    if not has_ids:
        verified = replace(verified, ids=None, query_ids=None)
    if capture is None:
        recording.insert(verified)
        return
    has_changed = not torch.equal(verified.query, capture.query)
    if capture.layout.word != "told" or has_changed:
        recording.replace(capture, replace(verified, pass_index=capture.pass_index))
    for other in recording._captures if has_changed else ():
        if (other.name, other.layout.word) == (pending.name, "usual"):
            other.layout = Layout("guessed", OTHER_PASS)


def _fits(order: Order, cells: Cells, widths: Collection[int]) -> bool:
    """Whether the heads fit a width of the module. If not, these heads may be copies of texts."""
    heads, width = order.count(HEADS), cells.query.shape[-1]
    is_one_head = heads == 1 == order.count(PARTS)  # as in a loop over heads
    return is_one_head or not widths or heads * width in widths


def _compare_texts(capture: Capture, row_texts: Tensor) -> None:
    """Refute the sequences of a call that depend on other texts than their indices imply. If the
    call is one of a loop over texts, set its first text. `row_texts`: the text of each query."""
    S, parts = len(capture.query), capture.parts
    probed = [{int(text) for text in row.unique() if text != NONE} for row in row_texts.view(S, -1)]
    if any(SEVERAL in row or len(row) != 1 for row in probed):
        return
    texts = [row.pop() for row in probed]
    if S // parts <= max(texts) and texts == [texts[0] + row // parts for row in range(S)]:
        capture.first, capture.texts = texts[0], max(capture.texts, max(texts) + 1)
        return
    for row, text in enumerate(texts):
        if text != (expected := capture.first + row // parts):
            capture.refutations[row] = f"queries of text {expected} depend on text {text}"
