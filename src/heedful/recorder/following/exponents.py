"""Decides what an operation makes of exponents of scores, and of the sums that they are divided by.

A softmax that is written out is `e = scores.exp(); e / e.sum(-1, keepdim=True)`. What was added to
the sum has a share of each row, as the 1 of softmax-plus-one (Miller, Attention is off by one,
2023) has: it is that of a sink. Exponents divided by anything else are weights if their rows sum
to one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.following.score_step import Operation, is_of_bits, number_of
from heedful.recorder.following.scores import Held, Scores, Sink, Total, Weights

ARITHMETIC = {"add", "sub", "rsub", "mul", "div"}
ROUNDING = 1e-4  # how far from 1 a row may sum after it was divided by its sum
NEAR = {torch.float32: 2e-5, torch.float64: 1e-11}  # what adding up a row explains of that
OF_LOGARITHMS = {**NEAR, torch.float16: 8e-3, torch.bfloat16: 4e-2}  # the same of logarithms


def total(role: Scores, step: Operation) -> Scores | None:
    """The role of `sum` of exp(scores), or of `logsumexp` of scores, along one axis."""
    dims = step.arguments[1] if len(step.arguments) > 1 else step.keywords.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    if not dims or len(dims) != 1 or role.is_raised != (step.name == "sum"):
        return None
    return replace(role, total=Total(role, step.axes, dims[0] % len(step.axes)))


def after_total(role: Scores, own: Total, step: Operation) -> Scores | None:
    """The role of a sum of exponents after arithmetic on it; none after anything else."""
    if step.has_changed_nothing:
        return role
    if step.name not in ARITHMETIC or not own.of.is_raised:
        return None
    more = _more(own, step)
    held = Held(more) if isinstance(more, Tensor) else None
    return replace(role, total=own._replace(more=more, held=held))


def _more(own: Total, step: Operation) -> float | Tensor | None:
    """What was added to a sum of exponents by now; None where it is no sum and more any longer."""
    more = step.other
    if own.more is None or step.name in ("mul", "div") or step.role_of(more) is not None:
        return None
    if own.held is not None and own.held.has_changed:
        return None
    sign_own, sign_more = step.signs
    if sign_own != 1.0:
        return None
    if isinstance(more, Tensor):
        more = more.detach().expand(step.made.shape) if more.ndim else float(more)
    if sign_more != 1.0:
        more = more * sign_more
    if isinstance(own.more, Tensor) and own.more.shape != step.made.shape:
        return None
    # a parameter alone stays the model's own tensor
    return more + own.more if isinstance(own.more, Tensor) or own.more else more


def after_raised(role: Scores, step: Operation) -> Any:
    """The role after an operation on exp(scores): a mask hides keys, a factor makes weights."""
    other = step.other
    is_by = step.name in ("mul", "div") and isinstance(other, Tensor) and not step.is_noise(other)
    if step.has_changed_nothing:
        made = _divided(role, step) if is_by else None  # their sums may be one already
        return role if made is None else made
    if is_by:
        if other.ndim and step.total_of(role) is None and is_of_bits(other):
            return step.onto(role, "hide", other.detach() == 0)
        return _divided(role, step)
    if step.name == "masked_fill" and number_of(step.arguments[2]) == 0:
        mask = step.arguments[1]
        return step.onto(role, "hide", mask.detach().bool(), mask)
    return replace(role, lost=role.lost or step.name)


def _divided(role: Scores, step: Operation) -> Weights | None:
    """The weights, if rows sum to one now, whatever they were divided by; else None.

    Where that was their own sum and more, as in softmax-plus-one, what is more has a share too: it
    is a sink's.
    """
    if step.name == "div" and (step.place == 1 or step.keywords.get("rounding_mode")):
        return None
    own = step.total_of(role) if step.name == "div" else None
    if own is None:
        return _weights(role, step, summed_to_one(step))
    if own.more is None or (own.held is not None and own.held.has_changed):
        return None  # in half precision its rows may sum to one all the same
    dim = own.dim if own.axes == step.axes else None
    if isinstance(own.more, Tensor) or own.more:
        sums = step.other.detach()
        more = _as_column(own.more, sums)
        if more is None:
            return None
        if bool((more.abs() > _unseen(step.made.dtype) * sums).any()):
            return _with_share(role, own, more, step, dim)
    return _weights(role, step, summed_to_one(step, dim=dim))


def _unseen(kind: torch.dtype) -> float:
    """The share of a sum that is not seen in weights: what adding up a row loses anyway.

    In float32 it is a little more than the 1e-6 that keeps many a sum from zero.
    """
    return torch.finfo(kind).eps * (16 if kind.itemsize > 2 else 1)


def _as_column(more: float | Tensor, sums: Tensor) -> Tensor | None:
    """What was added to sums, with the axes that these have now; None where they are others."""
    if not isinstance(more, Tensor):
        return sums.new_full((1,) * sums.ndim, more)
    return more.reshape(sums.shape).to(sums) if more.numel() == sums.numel() else None


class Ones(NamedTuple):
    """Rows that sum to one along an axis.

    others: which rows do not, (…, 1 along that axis, …), because they are zeros or no numbers, as
        where all exponents were 0, or their sum had no room in its type.
    are_rough: whether some sum to one no nearer than two programs are that compute the same.
    """

    dim: int
    others: Tensor
    are_rough: bool


def summed_to_one(
    step: Operation, beside: float | Tensor = 0.0, dim: int | None = None
) -> Ones | None:
    """The axis along which rows sum to one, with what stands beside them; None where none does.

    `dim` is the only axis that it may be, where that is known.
    """
    kind = step.made.dtype
    dims = [dim] if dim is not None else [one for one, parts in enumerate(step.axes) if parts]
    for one in reversed(dims):
        sums = _sums(step.made, one) + beside
        is_one = (sums - 1).abs() <= _room(kind)
        is_none = (sums == 0) | sums.isnan()
        if bool(is_one.any()) and bool((is_one | is_none).all()):
            is_rough = (sums - 1).abs() > NEAR.get(kind, 1.0)
            return Ones(one, ~is_one, bool((is_one & is_rough).any()))
    return None


def are_apart_from_one(weights: Tensor, dim: int) -> bool:
    """Whether rows of weights that came of logarithms sum to more or less than one.

    The logarithm of a small weight is rounded coarsely in half precision, and many alike may come
    to some hundredths too much.
    """
    off = (_sums(weights, dim) - 1).abs()
    return bool((off > OF_LOGARITHMS.get(weights.dtype, ROUNDING)).any())


def _sums(table: Tensor, dim: int) -> Tensor:
    wide = torch.promote_types(table.dtype, torch.float32)
    return table.detach().sum(dim=dim, keepdim=True, dtype=wide)


def _room(kind: torch.dtype) -> float:
    """How far from 1 a row of a type may sum after it was divided by its sum."""
    return ROUNDING if kind.itemsize > 2 else 2e-2


def _weights(
    role: Scores, step: Operation, ones: Ones | None, own_sums: Tensor | None = None
) -> Weights | None:
    """The weights of exponents whose rows sum to one now; those of other rows were set to zero.

    Of exponents that have lost digits, or of sums that have, only the weights can be shown.
    `own_sums` are those of the exponents, where they were divided by more than that.
    """
    factor = None if ones is None else _of_rows(step.other, ones.dim - len(step.axes))
    if ones is None or factor is None or role.raised is None:
        return None
    sums = own_sums
    if sums is None:
        sums = factor.detach() if step.name == "div" else factor.detach().reciprocal()
    is_faint = sums < torch.finfo(role.raised).tiny  # their type has not all their digits
    role = replace(role, raised=None)
    if ones.are_rough or bool((is_faint & ~ones.others).any()):
        role = replace(role, lost=role.lost or step.name)
    if bool(ones.others.any()):
        role = step.onto(role, "empty", ones.others)
    return Weights(role, step.axes, ones.dim)


def _of_rows(factor: Tensor, dim: int) -> Tensor | None:
    """What exponents were divided by or multiplied with, once for each row, if it is one there.

    `dim` is the axis of the keys, counted from the last one.
    """
    if factor.ndim < -dim or factor.shape[dim] == 1:
        return factor
    first = factor.detach().narrow(dim, 0, 1)
    is_one = factor.stride(dim) == 0 or bool(((factor == first) | factor.isnan()).all())
    return first if is_one else None


def _with_share(
    role: Scores, own: Total, more: Tensor, step: Operation, dim: int | None
) -> Weights | None:
    """The weights of exponents that were divided by their sum and more: that is a sink's.

    `more` is `own.more` as a column beside the sums, which it is a part of.
    """
    sums = step.other.detach()
    ones = summed_to_one(step, more / sums, dim)
    if ones is None or role.sink is not None or not bool((more >= 0).all()):
        return None
    if sums.ndim != len(step.axes) or sums.shape[ones.dim] != 1:
        return None
    is_sure = not isinstance(own.more, Tensor) or step.is_parameter(own.more)
    sink = Sink(more.log(), step.axes, len(role.changes), is_sure)
    own_sums = sums - more if step.given is None else _sums(step.given, ones.dim)
    own_sums = own_sums.masked_fill(own_sums == 0, 1.0)  # of zeros no digit is lost
    return _weights(replace(role, sink=sink), step, ones, own_sums)
