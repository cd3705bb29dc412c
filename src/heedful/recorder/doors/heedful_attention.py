"""The first door: sees calls of `heedful.attention`, by the project's own models and layers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from heedful.ops import dispatch
from heedful.ops.arguments import Arguments
from heedful.ops.log_sum_exp import Catching
from heedful.ops.masks import is_of_ours
from heedful.ops.sdpa import four_axes
from heedful.recorder.doors.sdpa import DROPPED
from heedful.recorder.observed_call import AXES, Observed, See

DOOR = "heedful"


def watch(see: See) -> AbstractContextManager[None]:
    """Tell of every call of `heedful.attention` in this thread."""

    def listen(arguments: Arguments, context: Tensor, caught: Catching) -> None:
        see(translated, arguments, context, caught)

    return dispatch.listening(listen)


def translated(arguments: Arguments, context: Tensor, caught: Catching) -> Observed:
    """The call that the arguments of `heedful.attention` make, with four axes."""
    lead, shape = arguments.shape[:-2], arguments.shape
    query, key, value, output = (four_axes(tensor, lead) for tensor in (*arguments[:3], context))
    given, mask = arguments.mask, None
    has_axes = given is not None and len(shape) != 4 and given.device is not None
    if given is not None and (has_axes or not is_of_ours(given)):  # which may change any time
        mask = four_axes(given.crop(shape, device=query.device), lead)
    bias = None if arguments.bias is None else four_axes(arguments.bias, lead)
    return Observed(
        query,
        key,
        value,
        output,
        arguments.scale,
        mask=given if mask is None else mask,
        bias=bias,
        sums=caught.found(query.shape[:3]),
        door=DOOR,
        axes=AXES if len(shape) in (2, 4) else "",
        why=DROPPED if arguments.dropout else "",
    )
