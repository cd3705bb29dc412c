"""Follows what operations write into: the tensor that they change in place, and any other.

`scores.mul_(2)` gives the same scores after one more change, as `scores * 2` does. What is written
into a part of scores, or by an operation that is not known, changes them nobody knows how: then
only the weights that come of them can be shown, and weights that were changed so are missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.recorder.following.moved import moves
from heedful.recorder.following.operation_kinds import Done, Kind, kind_of
from heedful.recorder.following.score_changes import HAND_ON, SOFTMAXES
from heedful.recorder.following.scores import Scores, Weights
from heedful.recorder.following.storages import Kept, Operand, Traced, fills
from heedful.recorder.following.strides import Parts, place

WRITES = {"copy", "index_copy", "index_add", "index_put", "scatter", "scatter_add"}
FILL = kind_of(torch.ops.aten.masked_fill_.Tensor)
NOISE = {"bernoulli", "random", "uniform", "normal"}

# Gives the role after an operation: of the role, the operation, which argument had it, its axes,
# and that argument (None where it was changed in place)
After: TypeAlias = Callable[[Any, Done, int, list[Parts], Tensor | None], Any]


def follow(done: Done, traced: Traced, after: After) -> None:
    """Update the role of the tensor that an operation has changed in place."""
    done = _as_fill(done)
    kept, kind = traced.written_into(done.made), done.kind
    operands = traced.operands(done.arguments)
    traced.changed(kept, operands)
    if kind.is_into or moves(kind.name):
        traced.moved(done.made, kind, done.by_name)
    if kind.is_into and kind.name in SOFTMAXES:
        _tell_lost(done, operands, kept, after)
    if kind.name in NOISE:
        kept.is_noise = True
    elif kind.name in WRITES:
        kept.role = None
        traced.copied(done.made, _written(done))
    elif kept.role is None and kind.is_pointwise and not kind.is_into:
        traced.mixed(done.made, [one.view for one in operands])
    elif kept.role is not None:
        axes, is_whole = traced.axes(done.made), fills(done.made)
        hands_on = kind.is_pointwise or kind.name in HAND_ON
        at = _number_of(done.made, operands) if kind.is_into else 0
        if axes is None or not is_whole or not hands_on or at is None:
            kept.role = None
        else:
            kept.role = after(kept.role, done, at, axes, None)


def follow_others(
    kind: Kind, arguments: tuple, keywords: dict[str, Any], result: Any, traced: Traced
) -> None:
    """Note which tensors an operation has written into beside its result."""
    operands = traced.operands(arguments)
    is_result = kind.is_in_place and isinstance(result, Tensor)
    for one in traced.operands(tuple(kind.written(arguments, keywords))):
        if is_result and one.tensor is result:
            continue
        kept = traced.written_into(one.tensor)
        traced.changed(kept, operands)
        kept.role = _changed(kept.role, kind.name)


def _as_fill(done: Done) -> Done:
    """`scores[mask] = number` as the `masked_fill_` that it is; anything else as it is."""
    if done.kind.name != "index_put" or done.kind.is_into:
        return done
    given = done.by_name
    places = [place for place, one in enumerate(given["indices"]) if one is not None]
    if len(places) != 1 or given.get("accumulate") or given["values"].numel() != 1:
        return done
    mask = given["indices"][places[0]]
    if mask.dtype != torch.bool:
        return done
    behind = done.made.ndim - places[0] - mask.ndim
    mask = mask[(..., *[None] * behind)]
    return Done(FILL, (done.made, mask, given["values"].reshape(())), {}, done.made)


def _changed(role: Any, name: str) -> Any:
    """What a role has become where all that is known is which operation has changed the numbers."""
    if isinstance(role, Scores):
        return replace(role, lost=role.lost or name)
    if isinstance(role, Weights):
        return replace(role, altered=role.altered or name)
    return None


def _tell_lost(done: Done, operands: list[Operand], target: Kept, after: After) -> None:
    """Tell of a softmax of scores into another tensor that has room, which is not followed."""
    for one in operands:
        axes = one.view.known()
        is_other = isinstance(one.kept.role, Scores) and one.kept is not target
        if is_other and axes is not None:
            after(one.kept.role, done, one.at, axes, one.tensor)


def _written(done: Done) -> Any:
    """What an operation in place has written, if its axes stand as those of the target do."""
    given = done.by_name
    if sum(one is not None for one in given.get("indices", ())) > 1:
        return None  # places along several axes: what is written has one axis for all of them
    return next((given[name] for name in ("src", "source", "values") if name in given), None)


def _number_of(target: Tensor, operands: list[Operand]) -> int | None:
    """Which argument a tensor is that is written into with `out=`; None if it is none of them."""
    mine = target.data_ptr(), *place(target)
    same = (one for one in operands if (one.tensor.data_ptr(), *place(one.tensor)) == mine)
    return next((one.at for one in same), None)
