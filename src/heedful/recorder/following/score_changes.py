"""Decides what an operation makes of scores or of weights.

Each function takes a role (`Scores` or `Weights`) and an `Operation` on the tensor that has it, and
returns the role of the result, None where it has none. For example `scores / 8` gives the same
scores after one more change, ("divide", 8); `softmax(scores)` gives `Weights`; an operation that
`Causes` cannot express, such as `relu(scores)`, gives scores that are lost: of these only the
weights can be shown. A softmax that is written out goes by `exponents.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.recorder.following import exponents
from heedful.recorder.following.score_step import Operation, is_of_bits, number_of
from heedful.recorder.following.scores import (
    FAINT,
    Change,
    Scores,
    Sink,
    Weights,
    copied,
    is_narrowed,
    lowest,
)

HANDS_ON = {"clone", "_to_copy", "copy", "view_as_real", "lift_fresh", "alias", "detach"}
SOFTMAX = {"_softmax", "_safe_softmax", "softmax", "special_softmax"}
LOG_SOFTMAX = {"_log_softmax", "log_softmax"}
SOFTMAXES = SOFTMAX | LOG_SOFTMAX
# Operations whose result may have the role of its operand, beside those that work number by number
HAND_ON = HANDS_ON | SOFTMAXES | {"cat", "sum", "logsumexp", "native_dropout"}
FILLS = {"masked_fill", "where"}


def after_scores(role: Scores, step: Operation) -> Any:
    """The role of the result of an operation on scores."""
    name = step.name
    if not step.made.is_floating_point():
        return None
    if name in HANDS_ON:
        return step.onto(role, "cast", None) if is_narrowed(step.given, step.made) else role
    if name in SOFTMAXES:
        return _softmaxed(role, step)
    if name == "cat":
        return _with_sink(role, step)
    if name in ("sum", "logsumexp"):
        return exponents.total(role, step)
    if not step.has_its_shape:
        return None
    if role.total is not None:
        return exponents.after_total(role, role.total, step)
    if role.is_raised:
        return exponents.after_raised(role, step)
    made = _after_known(role, step)
    return made if made is not None else _unchanged_or_lost(role, step)


def _after_known(role: Scores, step: Operation) -> Scores | Weights | None:
    """The role after an operation that `Causes` can express; None for any other."""
    name, other = step.name, step.other
    if name in ("mul", "div"):
        return _scaled(role, step, other)
    if name == "neg":
        return step.onto(role, "scale", -1.0)
    if name in ("add", "sub", "rsub"):
        return _added(role, step, other)
    if name in FILLS:
        hidden = _hidden(step)
        return None if hidden is None else step.onto(role, *hidden)
    if name == "tanh":
        return step.onto(role, "softcap", 1.0)
    if name == "exp":
        return replace(role, raised=step.made.dtype)
    return None


def _unchanged_or_lost(role: Scores, step: Operation) -> Scores:
    """The same scores if the operation changed no number (an idle clamp), else lost ones."""
    if step.has_changed_nothing:
        return role
    return replace(role, lost=role.lost or step.name)


def _scaled(role: Scores, step: Operation, other: Any) -> Scores | None:
    """The scores after `mul` or `div`; a table of 0 and 1 is taken for a mask that keeps."""
    if step.name == "div" and (step.place == 1 or step.keywords.get("rounding_mode")):
        return None
    kind = "divide" if step.name == "div" else "scale"
    if not isinstance(other, Tensor):
        return step.onto(role, kind, float(other))
    if step.is_noise(other):
        return None
    if other.ndim and bool((other == 1).all()):
        return role
    if kind == "scale" and other.ndim and is_of_bits(other):
        kind = "keep"
    return step.onto(role, kind, other.detach(), other)


def _added(role: Scores, step: Operation, other: Any) -> Scores | Weights | None:
    """The scores after `add`, `sub` or `rsub`; log-weights if it subtracts their own logsumexp."""
    sign_own, sign_other = step.signs
    total = step.total_of(role)
    if total is not None:
        own = Weights(role, step.axes, total.dim, is_logarithm=True)
        return own if (sign_own, sign_other) == (1.0, -1.0) else None
    if sign_own != 1.0:
        role = step.onto(role, "scale", sign_own)
    if isinstance(other, Tensor):
        value: Any = other.detach()
        # a table of the model's own is not copied
        value = value if sign_other == 1.0 else value * sign_other
    else:
        value = float(other) * sign_other
    source = other if isinstance(other, Tensor) and sign_other == 1.0 else None
    return step.onto(role, "add", value, source)


def _hidden(step: Operation) -> tuple[str, Tensor, Tensor, Any] | None:
    """The change that `masked_fill` or `where` makes; None where it hides no key.

    It has the kind of the change and its value, the mask, and the number that replaces scores.
    """
    if step.name == "masked_fill":
        mask, value = step.arguments[1:3]
        place = 0
    else:
        mask, one, other = step.arguments[:3]
        place, value = (1, other) if step.place == 1 else (2, one)
    if not _hides(value):
        return None
    hidden = mask.detach()
    hidden = hidden if hidden.dtype == torch.bool else hidden.bool()
    number = _one_number(value)
    kind = "hide" if not isinstance(number, Tensor) and number == -math.inf else "fill"
    return kind, ~hidden if place == 1 else hidden, mask, number


def _one_number(value: Any) -> Any:
    """The number that all entries of a table are; the table itself where they differ."""
    if not isinstance(value, Tensor):
        return float(value)
    least, most = value.detach().aminmax()
    return float(least) if bool(least == most) else value.detach().clone()


def _hides(value: Any) -> bool:
    """Whether a score of this value is so low that its key is hidden."""
    if isinstance(value, Tensor):
        least = lowest(value.dtype) if value.is_floating_point() else FAINT
        return bool((value <= max(FAINT, least)).all())
    return float(value) <= FAINT


def _softmaxed(role: Scores, step: Operation) -> Weights:
    dim = step.arguments[1] if len(step.arguments) > 1 else step.keywords["dim"]
    if is_narrowed(step.given, step.made):  # first, where the softmax was given a narrower type
        role = step.onto(role, "cast", None)
    return Weights(role, step.axes, dim % len(step.axes), is_logarithm=step.name in LOG_SOFTMAX)


def _with_sink(role: Scores, step: Operation) -> Scores | None:
    """The scores after `cat` put one more column beside them: that of a learned sink."""
    pieces = step.arguments[0]
    dim = step.arguments[1] if len(step.arguments) > 1 else step.keywords.get("dim", 0)
    if len(pieces) != 2 or role.sink is not None or role.is_raised:
        return None
    column = pieces[1 - step.place]
    if column.shape[dim] != 1 or column.ndim != len(step.axes) or step.role_of(column) is not None:
        return None  # it may be the score of another key
    is_sure = step.is_parameter(column)
    sink = Sink(copied(column.detach()), step.axes, len(role.changes), is_sure)
    return replace(role, sink=sink)


def after_weights(role: Weights, step: Operation) -> Weights | None:
    """The role of the result of an operation on weights."""
    name, other = step.name, step.other
    if not step.made.is_floating_point():
        return None
    if name in HANDS_ON:
        is_rounded = is_narrowed(step.given, step.made)
        return replace(role, kinds=role.kinds | {step.made.dtype}) if is_rounded else role
    if not step.has_its_shape:
        return None
    if role.is_logarithm:
        if name == "exp":
            return _from_logarithms(role, step)
        return replace(role, altered=role.altered or name)
    is_random = isinstance(other, Tensor) and step.is_noise(other)
    if name == "native_dropout" or (name == "mul" and is_random):
        return replace(role, dropped=True)
    beside = [one for one in step.roles_beside if isinstance(one, Weights)]
    if any(one.shown is not role.shown for one in beside):  # forms of one softmax share it
        return replace(role, altered="another softmax is combined with it")
    if step.has_changed_nothing:
        return role
    is_map = role.axes[-1] == role.over
    emptied = (
        _hidden_again(role, step) if step.given is None else _emptied(step) if is_map else None
    )
    if emptied is not None:
        return replace(role, scores=step.onto(role.scores, "empty", emptied))
    return replace(role, altered=role.altered or name)


def _from_logarithms(role: Weights, step: Operation) -> Weights:
    """The weights of their logarithms, if rows sum to one; else only these can be shown.

    A logsumexp of hundreds is rounded in half precision, and all weights of a row with it.
    """
    dim = step.axes.index(role.over) if role.over in step.axes else None
    is_lost = dim is None or exponents.are_apart_from_one(step.made, dim)
    scores = replace(role.scores, lost=role.scores.lost or "exp") if is_lost else role.scores
    return replace(role, scores=scores, is_logarithm=False)


def _hidden_again(role: Weights, step: Operation) -> Tensor | None:
    """The mask of a `masked_fill_` with zero, if it alone has hidden the scores before; else None.

    Its keys have no weight already, but in rows of which it hides all keys. With a second mask
    there may be rows that see nothing of which it hides only some.
    """
    if step.name != "masked_fill" or number_of(step.arguments[2]) != 0:
        return None
    changes = role.scores.changes
    hiding = [one for one in changes if one.kind in ("hide", "fill", "keep") or _may_hide(one)]
    if len(hiding) != 1 or hiding[0].kind not in ("hide", "fill"):
        return None
    mask, known = step.arguments[1], hiding[0]
    is_known = known.axes == step.axes and known.value.shape == mask.shape
    # what was kept of the first is watched for changes
    return known.value if is_known and torch.equal(known.value, mask.detach().bool()) else None


def _may_hide(change: Change) -> bool:
    """Whether a change adds a number so low that it hides keys."""
    if change.kind != "add":
        return False
    is_low = change.value <= FAINT
    return bool(is_low.any()) if isinstance(is_low, Tensor) else is_low


def _emptied(step: Operation) -> Tensor | None:
    """Which rows were set to zero, (…, 1); None where something else has changed too."""
    given, made = step.given, step.made
    if given is None or not made.is_floating_point():
        return None
    changed = (given != made).any(dim=-1, keepdim=True)
    is_empty = ~made.any(dim=-1, keepdim=True)
    return changed if bool((is_empty | ~changed).all()) else None
