"""Choice of the implementation for a call of attention; changes of its result, and listeners.

Most calls use torch's fused kernels. Calls that torch's CPU kernel does not support, such as those
with dropout, use `definition.py`. Both paths apply every argument.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from heedful.ops import definition, sdpa
from heedful.ops.arguments import Arguments, in_float32
from heedful.ops.log_sum_exp import LogSumExpMode
from heedful.ops.masks import Causal, Dense, Mask

FULL_MASK = 1 << 20  # entries (1 MB): masks up to this size are built in full, for one kernel call
MAPPED = (functorch.TransformType.Vmap, functorch.TransformType.Jvp)

Listener: TypeAlias = Callable[[Arguments, Tensor, LogSumExpMode], None]
# Receives the call (its `Arguments`, or what another door passes) and a function that computes its
# output; returns the output that replaces it, and a description of the change ("" if none)
Changer: TypeAlias = Callable[[Any, Callable[[], Tensor]], tuple[Tensor, str]]


class _Thread(threading.local):
    listeners: tuple[Listener, ...] = ()
    changers: tuple[Changer, ...] = ()
    running = False  # True during a call that has listeners or changers
    note = ""  # how the call that is being reported was changed


_thread = _Thread()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener(arguments, context, log_sum_exp_mode)` after each attention in this thread."""
    _thread.listeners = (*_thread.listeners, listener)
    try:
        yield
    finally:  # other listeners may have been added in the meantime
        _thread.listeners = tuple(other for other in _thread.listeners if other is not listener)


@contextmanager
def changing(changer: Changer) -> Iterator[None]:
    """Replace the result of each attention in this thread by that of `changer(call, run)`."""
    _thread.changers = (*_thread.changers, changer)
    try:
        yield
    finally:
        _thread.changers = tuple(other for other in _thread.changers if other is not changer)


def is_running() -> bool:
    """Return whether this thread is inside a call of attention that is hidden from doors."""
    return _thread.running


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the calls of attention that run in this context from listeners, changers and doors."""
    was_running, _thread.running = _thread.running, True
    try:
        yield
    finally:
        _thread.running = was_running


def change_note() -> str:
    """Return how the call that is being reported was changed; "" if it was not."""
    return _thread.note


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Report calls in this context as changed, if `note` is not empty."""
    before, _thread.note = _thread.note, "; ".join(filter(None, (_thread.note, note)))
    try:
        yield
    finally:
        _thread.note = before


def changed(call: Any, run: Callable[[], Tensor]) -> tuple[Tensor, str]:
    """Return the output of a call after all changers of this thread, and what they changed.

    `run()` computes the output of the model; a changer that replaces all of it does not run it.
    """
    notes, output = [], None
    for changer in () if _thread.running else _thread.changers:
        output, note = changer(call, run)
        run = functools.partial(_return, output)  # for the next changer
        notes.append(note)
    return run() if output is None else output, "; ".join(filter(None, notes))


def _return(output: Tensor) -> Tensor:
    return output


def attend(arguments: Arguments) -> Tensor:
    """Compute the context, (..., N, v), let changers replace it, and notify the listeners."""
    listeners = _thread.listeners
    if _thread.running or not (listeners or _thread.changers):
        return in_float32(_compute, arguments)
    mode = LogSumExpMode()

    def run() -> Tensor:
        with hidden(), mode:
            return in_float32(_compute, arguments)

    context, note = changed(arguments, run)
    with noted(note):
        for listener in listeners:
            listener(arguments, context, mode)
    return context


def _compute(arguments: Arguments) -> Tensor:
    """Compute the context with the definition, one kernel call, or one call per block."""
    mask, shape, is_on_cpu = arguments.mask, arguments.shape, arguments.query.is_cpu
    if is_on_cpu and (arguments.dropout or _is_mapped()):  # torch's CPU kernel supports neither
        return definition.attend(arguments)

    four = sdpa.to_kernel_form(arguments)
    if arguments.bias is None and _masks_nothing(mask, shape):
        context = sdpa.call(four)
    elif arguments.bias is None and _is_top_left(mask, shape):
        context = sdpa.call(four, causal=True)
    elif mask is None or type(mask) is Dense or shape[-2] * shape[-1] <= FULL_MASK:
        context = sdpa.call(four, sdpa.table(four))
    else:
        context = sdpa.call_in_blocks(four, mask)
    context = sdpa.restore_axes(context, four, arguments)

    if is_on_cpu and _lost_nan(context, arguments):  # NaN in the output reveals a diverging model
        return definition.attend(arguments)
    return context


def _is_mapped() -> bool:
    """Return whether `torch.func.vmap` or `jvp` is active; torch's CPU kernel supports neither.

    The kernel would run once per mapped element, and its result could not be searched for NaN.
    """
    if torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is None:
        return False
    return any(level.key() in MAPPED for level in functorch.get_interpreter_stack())


def _masks_nothing(mask: Mask | None, shape: tuple[int, ...]) -> bool:
    """Return whether no pair is masked: no mask, or `Causal` that masks no key for query 0."""
    return mask is None or (type(mask) is Causal and len(mask.span(range(1), shape)) == shape[-1])


def _is_top_left(mask: Mask | None, shape: tuple[int, ...]) -> bool:
    """Return whether the mask equals torch's `is_causal`: query n may attend to keys m ≤ n."""
    if not isinstance(mask, Causal):
        return False
    return mask.offset == 0 or (mask.offset is None and shape[-2] == shape[-1])


def _lost_nan(context: Tensor, arguments: Arguments) -> bool:
    """Return whether the kernel returned zeros although a query or a key contains NaN.

    torch's CPU kernel does this if there are fewer keys than lanes in a vector register (8 or 16).
    """
    if torch.compiler.is_compiling():  # no values yet; the residual sum still passes NaN on
        return False
    if arguments.shape[-1] >= 32 or not bool((context[..., :1] == 0).any()):
        return False
    return any(bool(tensor.isnan().any()) for tensor in arguments[:2])
