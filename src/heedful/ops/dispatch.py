"""Chooses how a call of attention is computed, and tells those who listen what came of it.

Most calls go to torch's kernels. What these cannot do on a CPU, such as dropout, is computed by
the definition. No argument is dropped on either road.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from heedful.ops import definition, sdpa
from heedful.ops.arguments import Arguments, in_float32
from heedful.ops.log_sum_exp import Catching
from heedful.ops.masks import Causal, Dense, Mask

WHOLE = 1 << 20  # a mask of up to so many entries (1 MB) is made whole, for one kernel call
MAPPED = (functorch.TransformType.Vmap, functorch.TransformType.Jvp)

Listener: TypeAlias = Callable[[Arguments, Tensor, Catching], None]


class _Thread(threading.local):
    listeners: tuple[Listener, ...] = ()
    running = False  # while a call that is listened to is under way


_thread = _Thread()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener of every call of this thread: arguments, context, and what was caught."""
    _thread.listeners = (*_thread.listeners, listener)
    try:
        yield
    finally:  # others may have come since, and may stay
        _thread.listeners = tuple(one for one in _thread.listeners if one is not listener)


def is_running() -> bool:
    """Whether a call that is listened to is under way in this thread."""
    return _thread.running


def attend(arguments: Arguments) -> Tensor:
    """The context (..., N, value width) of checked arguments; those who listen are told of it."""
    listeners = _thread.listeners
    if not listeners:
        return in_float32(_by_its_road, arguments)
    _thread.running = True
    try:
        with Catching() as caught:
            context = in_float32(_by_its_road, arguments)
    finally:
        _thread.running = False
    for listener in listeners:
        listener(arguments, context, caught)
    return context


def _by_its_road(arguments: Arguments) -> Tensor:
    """The context: by the definition, or by one kernel call or several."""
    mask, shape, is_on_cpu = arguments.mask, arguments.shape, arguments.query.is_cpu
    if is_on_cpu and (arguments.dropout or _is_mapped()):  # torch's kernel for CPUs does neither
        return definition.attend(arguments)

    four = sdpa.in_form(arguments)
    if arguments.bias is None and _hides_nothing(mask, shape):
        context = sdpa.call(four)
    elif arguments.bias is None and _is_top_left(mask, shape):
        context = sdpa.call(four, causal=True)
    elif mask is None or type(mask) is Dense or shape[-2] * shape[-1] <= WHOLE:
        context = sdpa.call(four, sdpa.table(four))
    else:
        context = sdpa.by_blocks(four, mask)
    context = sdpa.as_asked(context, four, arguments)

    if is_on_cpu and _lost_nan(context, arguments):  # a model that diverges must show it
        return definition.attend(arguments)
    return context


def _is_mapped() -> bool:
    """Whether `torch.func.vmap` or `jvp` runs: torch's kernel for CPUs has no rule for them.

    It would be called for each element by itself, and its result could not be searched for NaN.
    """
    if torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is None:
        return False
    return any(one.key() in MAPPED for one in functorch.get_interpreter_stack())


def _hides_nothing(mask: Mask | None, shape: tuple[int, ...]) -> bool:
    """Whether there is no mask, or a causal one whose first query sees every key."""
    return mask is None or (type(mask) is Causal and len(mask.span(range(1), shape)) == shape[-1])


def _is_top_left(mask: Mask | None, shape: tuple[int, ...]) -> bool:
    """Whether the mask is torch's own `is_causal`: query n sees keys m ≤ n."""
    if not isinstance(mask, Causal):
        return False
    return mask.offset == 0 or (mask.offset is None and shape[-2] == shape[-1])


def _lost_nan(context: Tensor, arguments: Arguments) -> bool:
    """Whether the kernel gave zeros although a query or a key is NaN.

    torch's kernel for CPUs does where there are fewer keys than its vectors have lanes, 8 or 16.
    """
    if torch.compiler.is_compiling():  # numbers are not known yet; the residual stream keeps a NaN
        return False
    if arguments.shape[-1] >= 32 or not bool((context[..., :1] == 0).any()):
        return False
    return any(bool(tensor.isnan().any()) for tensor in arguments[:2])
