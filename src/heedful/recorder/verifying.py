"""`recording.verify`: settles the layouts of a recording's first pass by probing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.recorder.doors.cells import KEYS, QUERIES
from heedful.recorder.observed import AXES
from heedful.recorder.owners.inputs import Inputs
from heedful.recorder.owners.probe import Call, Probed, Probing, called, undisturbed
from heedful.recorder.owners.probed_order import NONE, SEVERAL
from heedful.recorder.owners.usual_order import BLOCK, widths_of
from heedful.recorder.running import Frame, Running
from heedful.recorder.settling import Seen, Settling, cells_of_call, in_order
from heedful.recording import Recording
from heedful.recording.capture import Capture
from heedful.recording.proof import Layout

Again = Callable[[nn.Module], AbstractContextManager[Recording]]


def verify(
    again: Again,
    settling: Settling,
    running: Running,
    recording: Recording,
    model: nn.Module,
    inputs: Any,
    progress: Callable[[float], None],
) -> None:
    """Probe a model, and settle the layouts of the first pass of its recording.

    Args:
        again: records the model as before.
        settling: what has settled the calls of the recording.
        running: which knows the random states that the first pass found.
        recording, model, inputs, progress: as `Recording.verify` has them.

    Raises:
        ArgumentError: inputs that are not those of the recording, or no texts among them.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"a model of type {type(model).__name__}", expected="the module that was recorded"
        )
    given = called(inputs)
    runs = _Runs(again, model, running)
    with undisturbed(model), torch.no_grad():
        counts = _texts(model, given)
        probing = Probing(model, given, runs, progress)
        first = runs.first
        captures = _captures_of(recording, first)
        _compare(captures, first)
        probed = _best(probing, counts)
        for seen, capture, tells in zip(first, captures, probed, strict=True):
            _apply(recording, settling, seen, capture, tells)


class _Runs:
    """Runs a model once, recorded, and gives the calls of that pass.

    first: what was seen in the first of these passes.
    """

    def __init__(self, again: Again, model: nn.Module, running: Running) -> None:
        self.again, self.model, self.running = again, model, running
        self.first: list[Seen] = []

    def __call__(self, arguments: tuple, keywords: dict[str, Any]) -> list[Call]:
        if self.running.random_states is not None:
            self.running.random_states.put_back()
        with self.again(self.model) as recording:
            self.model(*arguments, **keywords)
            seen = recording.unsettled()
        self.first = self.first or seen
        return [
            Call(
                *self._projecting(one), cells_of_call(one.observed), one.observed.axes == AXES
            )
            for one in seen
        ]

    def _projecting(self, seen: Seen) -> tuple[str, int]:
        """The innermost module that runs with projections of its own: a core of attention that is
        given heads has an axis of them among its inputs."""
        modules = self.running.modules
        named = {name: module for module, name in modules.items()}
        for name, run in reversed(seen.where):
            if widths_of(named[name]):
                return name, run
        return seen.where[0]


def _texts(model: nn.Module, given: tuple[tuple, dict[str, Any]]) -> list[tuple[int, int]]:
    """How many texts there may be, each with the dimension of the inputs along which they are."""
    inputs = Inputs(Frame("", model, *given))
    shapes = [shape for shape in inputs.shapes.values() if shape]
    if not shapes and not inputs.listed_images:
        raise ArgumentError(
            "inputs with no tensor in them",
            expected="what the model was called with: keywords in a dictionary, or a list",
        )
    count, other = inputs.texts()
    counts = [one for one in (count, other) if one]
    found = [(n, dim) for n in counts for dim in (0, 1)
             if any(len(shape) > max(dim, 1) and shape[dim] == n for shape in shapes)]  # fmt: skip
    return found or [(count or 1, 0)]


def _captures_of(recording: Recording, first: list[Seen]) -> list[Capture | None]:
    """The recorded call of each that was seen again; None where it was refused."""
    first_pass = min((one.pass_index for one in recording._captures), default=0)
    known = {one.index: one for one in recording._captures if one.pass_index == first_pass}
    return [known.get(one.index) for one in first]


def _compare(captures: list[Capture | None], first: list[Seen]) -> None:
    """Refuse inputs with which the model does something else than was recorded.

    Raises:
        ArgumentError: with the module that does.
    """
    for capture, seen in zip(captures, first, strict=True):
        if capture is None:
            continue
        own, other = capture.key.double(), cells_of_call(seen.observed).key.double()
        is_same = capture.name == seen.name
        is_alone = seen.observed.meeting is not None and not seen.observed.meeting.has_product
        if is_same and not is_alone and own.numel() == other.numel():  # in any order of axes
            own, other = (one.flatten().sort().values for one in (own, other))
            is_same = bool((own - other).abs().max() <= 1e-2 * other.abs().max())
        if not is_same:
            raise ArgumentError(
                f"inputs with which {capture.name} does something else than was recorded",
                expected="the inputs of the pass that was recorded",
                cause="other inputs, a pass in training mode, whose dropout is not repeated, or a "
                "model that draws at random",
            )


def _best(probing: Probing, counts: list[tuple[int, int]]) -> list[Probed]:
    """What probing tells, with texts along the dimension that settles most calls."""
    tried: list[list[Probed]] = []
    failed: ArgumentError | None = None
    for texts, dim in counts:
        try:
            tried.append(probing.probed(texts, dim))
        except ArgumentError as error:
            failed = error
            continue
        if not any(map(_is_open, tried[-1])):
            break
    if not tried and failed is not None:
        raise failed
    return min(tried, key=lambda several: sum(map(_is_open, several)))


def _is_open(probed: Probed) -> bool:
    return bool(probed.why) or bool((probed.texts == SEVERAL).any())


def _apply(
    recording: Recording, settling: Settling, seen: Seen, capture: Capture | None, probed: Probed
) -> None:
    """Note in a recording what probing tells of a call."""
    if probed.order is None:
        if capture is not None and seen.observed.axes == AXES:
            _compare_texts(capture, probed.texts)
        elif capture is not None and probed.why:
            why = f"{capture.layout.why}; " if capture.layout.why else ""
            capture.layout = Layout("guessed", f"{why}probing did not settle it: {probed.why}")
        return
    cells = cells_of_call(seen.observed)
    try:
        is_block = probed.order.count(KEYS) == 1 < probed.order.count(QUERIES)
        layout = Layout("guessed", BLOCK) if is_block else Layout("verified")
        arranged = in_order(seen, cells, probed.order, layout)
    except TypeError:  # it was missed, for another reason than its axes
        return
    texts = {int(text) for text in probed.texts.unique() if text >= 0}
    if arranged.texts == 1 and len(texts) == 1:  # of one text, as in a loop over them
        of_texts = max(1, *(one.texts for one in recording._captures), max(texts) + 1)
        arranged = arranged._replace(first=texts.pop(), of_texts=of_texts)
    made = settling.kept(seen, arranged)
    if made is None:
        return
    if capture is None:
        recording.insert(made)
        return
    is_same = made.query.shape == capture.query.shape and torch.equal(made.query, capture.query)
    if is_same and capture.layout.word == "told":
        return
    recording.replace(capture, replace(made, pass_index=capture.pass_index))


def _compare_texts(capture: Capture, of_rows: Tensor) -> None:
    """Refute sequences of a told call that are of other texts than their places say."""
    S = len(capture.query)
    of_sequences = of_rows.view(S, -1)
    known = [{int(text) for text in row.unique() if text != NONE} for row in of_sequences]
    if any(SEVERAL in row or len(row) != 1 for row in known):
        return
    texts = [row.pop() for row in known]
    own = [capture.first + row // capture.parts for row in range(S)]
    if texts == own:
        return
    start = texts[0]
    if texts == [start + row // capture.parts for row in range(S)] and S // capture.parts < max(texts) + 1:
        capture.first, capture.texts = start, max(capture.texts, max(texts) + 1)
        return
    for row, (text, other) in enumerate(zip(texts, own, strict=True)):
        if text != other:
            capture.against[row] = f"sequence {row} changes with text {text}, and not with {other}"
