"""The door to `heedful.attention`, which heedful's own models and layers call."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from heedful.ops import dispatch
from heedful.ops.arguments import Arguments
from heedful.ops.log_sum_exp import LogSumExpMode
from heedful.ops.masks import is_built_in
from heedful.ops.sdpa import four_axes
from heedful.recorder.doors.sdpa import DROPPED
from heedful.recorder.observed_call import AXES, Observed, Report

DOOR = "heedful"


def watch(report: Report) -> AbstractContextManager[None]:
    """Report every call of `heedful.attention` in this thread."""

    def listen(arguments: Arguments, context: Tensor, lse: LogSumExpMode) -> None:
        report(from_arguments, arguments, context, lse)

    return dispatch.listening(listen)


def from_arguments(
    arguments: Arguments, context: Tensor | None = None, lse: LogSumExpMode | None = None
) -> Observed:
    """Return the call of `heedful.attention` with these arguments, as tensors with four axes."""
    lead, shape = arguments.shape[:-2], arguments.shape
    query, key, value = (four_axes(tensor, lead) for tensor in arguments[:3])
    output = None if context is None else four_axes(context, lead)
    mask, table = arguments.mask, None
    has_axes = mask is not None and len(shape) != 4 and mask.device is not None
    if mask is not None and (has_axes or not is_built_in(mask)):  # a user's class may be mutable
        table = four_axes(mask.crop(shape, device=query.device), lead)
    bias = None if arguments.bias is None else four_axes(arguments.bias, lead)
    return Observed(
        query, key, value, output, arguments.scale,
        mask=mask if table is None else table, bias=bias,
        sums=lse.result(query.shape[:3]) if lse else None, door=DOOR,
        axes=AXES if len(shape) in (2, 4) else "", why=DROPPED if arguments.dropout else "",
    )  # fmt: skip
