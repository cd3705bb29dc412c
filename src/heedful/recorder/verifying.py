"""`recording.verify`: settles the layouts of a recording's first pass by probing."""

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
from heedful.recorder.arranging import Seen, arranged, cells_of_call, in_order
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.axes.probe import Call, Given, Probed, Probing, Run
from heedful.recorder.axes.probed_order import NONE, SEVERAL, UNCHANGED
from heedful.recorder.axes.usual_order import BLOCK, HEADS, PARTS, Order, widths_of
from heedful.recorder.doors.tape_cells import KEYS, QUERIES, Cells
from heedful.recorder.finalizing import Settling
from heedful.recorder.module_stack import Frame
from heedful.recorder.observed_call import AXES
from heedful.recording import Recording
from heedful.recording.capture import Capture
from heedful.recording.proof import Layout

OTHER_PASS = "in the pass that recording.verify probed its axes are others"
Again = Callable[[nn.Module], AbstractContextManager[Recording]]


def verify(
    again: Again, settling: Settling, recording: Recording, model: nn.Module, inputs: Any,
    progress: Callable[[float], None],
) -> None:  # fmt: skip
    """Probe a model, and settle the layouts of the first pass of its recording.

    Args:
        again: records the model as before.
        settling: settles the calls of the recording.
        recording, model, inputs, progress: as in `Recording.verify`.

    Raises:
        ArgumentError: no module, or inputs that are not those of the recording.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}", expected="the module that was recorded"
        )
    given = _called(inputs)
    of_model = Inputs(Frame("", model, *given))
    if not any(of_model.shapes.values()):
        raise ArgumentError(
            "inputs with no tensor in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    runs = _Runs(again, model)
    with torch.no_grad(), _undisturbed(model):
        probing = Probing(model, given, runs, progress)
        captures = _captures_of(recording, runs.first)
        _compare(captures, runs.first, settling)
        probed, dim = _best(probing, _counts(of_model, runs.first))
        for seen, capture, tells in zip(runs.first, captures, probed, strict=True):
            _apply(recording, settling, seen, capture, tells, has_ids=dim == 0)
    progress(1.0)


class _Runs:
    """Runs and records a model, and gives the calls; `first` are those of the first pass."""

    def __init__(self, again: Again, model: nn.Module) -> None:
        self.again, self.model = again, model
        self.first: list[Seen] = []
        self._modules = dict(model.named_modules())

    def __call__(self, arguments: tuple, keywords: dict[str, Any]) -> list[Call]:
        torch.manual_seed(0)  # what a model draws is the same in each pass
        with self.again(self.model) as recording:
            self.model(*arguments, **keywords)
            seen = recording.unsettled()
        self.first = self.first or seen
        return [
            Call(self._projecting(call), cells_of_call(call.observed), call.observed.axes == AXES)
            for call in seen
        ]

    def _projecting(self, seen: Seen) -> Run:
        """The innermost module with projections: a core of attention has heads in its inputs."""
        projecting = (run for run in reversed(seen.where) if widths_of(self._modules[run[0]]))
        return next(projecting, seen.where[0])


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode, and put everything back: modes, buffers and random states."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module._buffers, name, buffer, buffer.detach().clone(), _changes(buffer))
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.eval()
        try:
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            for home, name, buffer, before, changes in buffers:
                home[name] = buffer
                if changes != _changes(buffer):  # a graph may hold it as it is
                    buffer.copy_(before)


def _changes(tensor: Tensor) -> float:
    """How often a tensor was changed; NaN where torch does not count it."""
    return math.nan if tensor.is_inference() else tensor._version


def _called(inputs: Any) -> Given:
    """Arguments and keywords of inputs: a mapping, a list of arguments, or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)), {}


def _counts(inputs: Inputs, calls: list[Seen]) -> list[tuple[int, int]]:
    """How many texts there may be, each with the dimension of the inputs along which they are."""
    shapes = [shape for shape in inputs.shapes.values() if shape]
    lengths = dict.fromkeys([*(call.observed.query.shape[-2] for call in calls), 0])
    counts = dict.fromkeys(count for length in lengths for count in inputs.texts(length) if count)
    several = [shape for shape in shapes if len(shape) > 1]
    pairs = [(1, 0)] if 1 in counts else []
    pairs += [(count, dim) for count in counts for dim in (0, 1)
              if count > 1 and any(shape[dim] == count for shape in several)]  # fmt: skip
    return pairs or [(next(iter(counts), 1), 0)]


def _captures_of(recording: Recording, first: list[Seen]) -> list[Capture | None]:
    """The recorded call of each that was seen again; None where it was refused."""
    first_pass = min((call.pass_index for call in recording._captures), default=0)
    known = {call.index: call for call in recording._captures if call.pass_index == first_pass}
    return [known.get(seen.number) for seen in first]


def _compare(captures: list[Capture | None], first: list[Seen], settling: Settling) -> None:
    """Raise `ArgumentError` for inputs with which the model does something else than recorded."""
    for capture, seen in zip(captures, first, strict=True):
        if capture is not None and not _is_same(capture, seen, settling):
            raise ArgumentError(
                f"inputs with which {capture.name} does something else than was recorded",
                expected="the inputs of the first pass that was recorded",
                cause="other inputs, a pass in training mode, whose dropout is not repeated, or a "
                "model that draws at random",
            )


def _is_same(capture: Capture, seen: Seen, settling: Settling) -> bool:
    """Whether a call that ran again has the queries and keys that were recorded."""
    if capture.layout.word == "verified":  # in another order
        cells = cells_of_call(seen.observed)
        of_call = [side.flatten().sort().values for side in (cells.query, cells.key)]
        recorded = [side.flatten().sort().values for side in (capture.query, capture.key)]
        if settling.heads is not None:  # which of its rows they are is not known any more
            return capture.name == seen.name
    else:
        observed = arranged(seen, settling.axes).observed
        if settling.heads is not None and seen.observed.axes != AXES:
            observed = observed.of_heads(settling.heads)
        of_call, recorded = [observed.query, observed.key], [capture.query, capture.key]
    return capture.name == seen.name and all(map(_is_near, recorded, of_call))


def _is_near(before: Tensor, again: Tensor) -> bool:
    if before.shape != again.shape or not before.numel():
        return before.shape == again.shape
    return not bool((before.double() - again).abs().max() > 1e-2 * again.abs().max())


def _best(probing: Probing, counts: list[tuple[int, int]]) -> tuple[list[Probed], int]:
    """What probing tells, with texts along the dimension that settles most calls, and that."""

    def unsettled(tried: tuple[list[Probed], int]) -> int:
        return sum(bool(call.why) or bool((call.texts == SEVERAL).any()) for call in tried[0])

    tried: list[tuple[list[Probed], int]] = []
    for texts, dim in counts:
        try:
            tried.append((probing.probed(texts, dim), dim))
        except ArgumentError:  # such as inputs that do not go together once they are changed
            if not tried and (texts, dim) == counts[-1]:
                raise
            continue
        if not unsettled(tried[-1]):
            break
    return min(tried, key=unsettled)


def _apply(
    recording: Recording, settling: Settling, seen: Seen, capture: Capture | None,
    probed: Probed, has_ids: bool,
) -> None:  # fmt: skip
    """Note in a recording what probing tells of a call; with positions first it has no ids."""
    meeting = seen.observed.meeting
    if meeting is not None and not meeting.has_product:  # nothing is known of what asked
        return
    cells, order, why = cells_of_call(seen.observed), probed.order, probed.why
    if order is not None and not _fits(order, cells, seen.widths):
        why = f"{order.count(HEADS)} heads do not fit the widths of the module"
        order = None
    if order is None:
        if capture is not None and seen.observed.axes == AXES:
            _compare_texts(capture, probed.texts)
        elif capture is not None and capture.layout.word != "told" and why != UNCHANGED:
            whys = filter(None, (capture.layout.why, f"probing did not settle it: {why}"))
            capture.layout = Layout("guessed", "; ".join(whys))
        return
    is_block = order.count(KEYS) == 1 < order.count(QUERIES)
    layout = Layout("guessed", BLOCK) if is_block else Layout("verified")
    try:
        ordered = in_order(seen, cells, order, layout)
    except TypeError:  # it was missed, for another reason than its axes
        return
    texts = {int(text) for text in probed.texts.unique() if text >= 0}
    if ordered.texts == 1 and len(texts) == 1:  # of one text, as in a loop over them
        of_texts = max(1, *(call.texts for call in recording._captures), max(texts) + 1)
        ordered = ordered._replace(first=texts.pop(), of_texts=of_texts)
    made = settling(seen, ordered)
    if made is None:
        return
    if not has_ids:
        made = replace(made, ids=None, query_ids=None)
    if capture is None:
        recording.insert(made)
        return
    is_other = not torch.equal(made.query, capture.query)
    if capture.layout.word != "told" or is_other:
        recording.replace(capture, replace(made, pass_index=capture.pass_index))
    for other in recording._captures if is_other else ():
        if (other.name, other.layout.word) == (seen.name, "usual"):
            other.layout = Layout("guessed", OTHER_PASS)


def _fits(order: Order, cells: Cells, widths: Collection[int]) -> bool:
    """Whether heads are as wide as the module, and neither copies of texts nor parts of one."""
    heads, width = order.count(HEADS), cells.query.shape[-1]
    is_one_head = heads == 1 == order.count(PARTS)  # as of a loop over heads
    return is_one_head or not widths or heads * width in widths


def _compare_texts(capture: Capture, of_rows: Tensor) -> None:
    """Refute sequences of a told call that are of other texts than their places say; a call of
    some texts alone, as a loop makes, gets their numbers."""
    S, parts = len(capture.query), capture.parts
    known = [{int(text) for text in row.unique() if text != NONE} for row in of_rows.view(S, -1)]
    if any(SEVERAL in row or len(row) != 1 for row in known):
        return
    texts = [row.pop() for row in known]
    if S // parts <= max(texts) and texts == [texts[0] + row // parts for row in range(S)]:
        capture.first, capture.texts = texts[0], max(capture.texts, max(texts) + 1)
        return
    for row, text in enumerate(texts):
        if text != (own := capture.first + row // parts):
            capture.against[row] = f"sequence {row} changes with text {text}, and not with {own}"
