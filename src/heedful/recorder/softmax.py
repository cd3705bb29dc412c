"""A softmax over some axis: torch's own, and other spellings, known by what they come to."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.recorder.seen import rounding

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
EXP = {torch.exp, torch.exp_, Tensor.exp, Tensor.exp_}
# What gives one half of a softmax, what hides some of it, and what makes it whole
HALF = {F.log_softmax, torch.log_softmax, Tensor.log_softmax, *EXP}
HIDING = {torch.mul, Tensor.mul, torch.where, torch.masked_fill, Tensor.masked_fill}
WHOLE = {torch.div, Tensor.div, Tensor.div_, torch.true_divide, Tensor.true_divide, *EXP}
ANY = SOFTMAX | HALF | HIDING | WHOLE
REMEMBERED = 4  # halves that are remembered, where the model itself still has them


class Softmaxes:
    """Knows softmaxes among torch's functions: exp(log_softmax(s)) is one, and e / e.sum(), too.

    Where exp or a division makes something of one half, that its rows sum to one is looked at.
    """

    def __init__(self) -> None:
        self._halves: list[weakref.ref[Tensor]] = []

    def axis_of(self, function: Any, arguments: tuple, keywords: dict, output: Any) -> int | None:
        """The axis of the softmax that a function has made, None where it made none.

        Of other spellings those over the last axis are known.
        """
        if function not in ANY or not isinstance(output, Tensor) or output.ndim < 2:
            return None
        if function in SOFTMAX:
            dim = keywords.get("dim", arguments[1] if len(arguments) > 1 else None)
            return dim % output.ndim if isinstance(dim, int) else None
        given = [one for one in (*arguments, *keywords.values()) if one is not None]
        is_of_half = any(half() is one for half in self._halves for one in given)
        if is_of_half and function in WHOLE and _sums_to_one(output):
            return output.ndim - 1
        if is_of_half or function in HALF:
            self._halves = [*self._halves[1 - REMEMBERED :], weakref.ref(output)]
        return None


def _sums_to_one(weights: Tensor) -> bool:
    """Whether the rows do, but for those that see nothing."""
    try:
        total = weights.detach().sum(dim=-1, dtype=torch.float32)
        is_one = (total - 1).abs() <= rounding(weights)
        return bool(is_one.any() and (is_one | ~(total > 0)).all())
    except RuntimeError:  # inside torch.func, and without storage, there are no numbers to look at
        return False
