"""Whether a tensor has the numbers that it had, or that another one has: a mask, or queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def are_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape and type have the same numbers; NaN is the same as NaN.

    torch compares eight bytes at a time in a third of the time, where rows are made of so many.

    >>> are_same(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    True
    """
    if _is_in_eights(one) and _is_in_eights(other):
        return torch.equal(one.view(torch.int64), other.view(torch.int64))
    if torch.equal(one, other):
        return True
    may_be_nan = one.is_floating_point() or one.is_complex()
    return may_be_nan and bool(((one == other) | (one != one) & (other != other)).all())


def counts_changes(tensor: Tensor) -> bool:
    """Whether torch counts how often a tensor is changed in place, in its `_version`.

    It does not in inference mode. There it leaves operations that consist of others whole, so that
    under a dispatch mode some of them (`multiply_`, or a change of `table.mT`) count for no tensor.
    """
    return not (tensor.is_inference() or torch.is_inference_mode_enabled())


def _is_in_eights(table: Tensor) -> bool:
    """Whether `view` can take the numbers of each row together, eight bytes at a time."""
    unit = 8 // table.element_size()
    if unit < 2 or not table.ndim or table.stride(-1) != 1:
        return False
    return math.gcd(table.storage_offset(), table.shape[-1], *table.stride()[:-1]) % unit == 0
