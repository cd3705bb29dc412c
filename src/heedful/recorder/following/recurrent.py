"""Says which axes the output of a recurrent layer of torch has: those of what it read.

Below Python an LSTM is one kernel, or some operations for each of its steps, whose results are put
beside each other; neither tells that place t of the output is of place t of the input. The layer
itself promises it (torch.nn.LSTM, "Outputs"), so it is taken from there, when the layer ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from heedful.recorder.following.axis_rules import is_tensor
from heedful.recorder.following.feature_rules import as_rows, feature
from heedful.recorder.following.storages import Traced, stored
from heedful.recorder.following.strides import Axes, Axis, Part
from heedful.recorder.hooks import Hook, Hooks


@contextmanager
def followed(layers: list[nn.Module], traced: Traced, runs: Callable[[], bool]) -> Iterator[None]:
    """Follow what goes through recurrent layers.

    Args:
        layers: those of the model that are torch's own.
        traced: the storages of the pass.
        runs: tells whether operations are to be followed now.
    """

    hooks, ended = Hooks(), _Ended((traced, runs))
    for layer in layers:
        hooks.after(layer, ended, with_kwargs=True)
    try:
        yield
    finally:
        hooks.remove()


class _Ended(Hook):
    """Tells what a recurrent layer has given."""

    __slots__ = ()

    def __call__(self, layer: nn.Module, arguments: tuple, keywords: dict, made: Any) -> None:
        if self.teller is None:
            return
        traced, runs = self.teller
        source = arguments[0] if arguments else keywords.get("input")
        with suppress(Exception):  # of an output that somebody has changed: then nothing is known
            if runs():
                _follow(layer, traced, source, *made)


def _follow(layer: Any, traced: Traced, source: Any, output: Any, state: Any) -> None:
    """Note the axes of what a layer gave: its output, (…, features), and its last states.

    Of texts that were packed, all places of all texts are one axis.
    """
    if isinstance(output, PackedSequence):
        size, width = output.data.shape
        places = (Part(Axis(size), 1, size, False),)
        traced.keep(output.data, stored([places, feature(width)], output.data))
        return
    if not is_tensor(output) or output.shape[:-1] != source.shape[:-1]:
        return
    rows = [as_rows(parts) for parts in traced.view(source).axes()[:-1]]
    traced.keep(output, stored([*rows, feature(output.shape[-1])], output))
    batch = rows[:0] if source.ndim < 3 else rows[:1] if layer.batch_first else rows[1:]
    for one in state if isinstance(state, tuple) else (state,):
        size = len(one)  # layers, and directions of each
        first: Axes = [(Part(Axis(size), 1, size),) if size > 1 else ()]
        traced.keep(one, stored([*first, *batch, feature(one.shape[-1])], one))
