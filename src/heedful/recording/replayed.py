"""Checks a call by hand: the weights that its tape gives, times values, against the output.

The comparison has the axes of the product with the values, so that it says nothing of which axis is
of texts, heads or queries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from heedful.ops.causes import unrounded
from heedful.recording.certificate import NOT_FINITE, Check, compare, concluded
from heedful.recording.evidence import Evidence, are_finite, projected


def check_replayed(evidence: Evidence, weights: Callable[[], Tensor]) -> Callable[[], Check]:
    """The check of a call by hand, to be made when it is first asked for.

    Args:
        evidence: what is kept of values (b, M, v) and output (b, N, v).
        weights: gives the weights (b, N, M), as they met the values.
    """
    return functools.partial(_check, evidence, weights)


@torch.no_grad()
def _check(evidence: Evidence, weights: Callable[[], Tensor]) -> Check:
    evidence = evidence.projected()
    values, outputs, rows = evidence.values, evidence.outputs, evidence.rows
    if values is None or outputs is None or rows is None:
        return Check(math.nan, evidence.tolerance, 0, evidence.why)
    map_ = weights()[..., rows, :]
    map_, values, outputs = (one.reshape(-1, *one.shape[-2:]) for one in (map_, values, outputs))
    kind = torch.promote_types(map_.dtype, torch.float32)
    if not (evidence.is_whole or are_finite(values)):
        return Check(math.nan, evidence.tolerance, 0, NOT_FINITE)
    with unrounded(map_):
        used = outputs.to(kind) if evidence.is_whole else projected(outputs).to(kind)
        blind = (map_ == 0).all(dim=-1) if map_.shape[-1] else map_.new_ones(map_.shape[:2]).bool()
        compared = compare(
            map_.to(kind), values.to(kind), used, blind, evidence.kinds, evidence.tolerance
        )
    if compared is None:
        return concluded(0.0, evidence.tolerance, 0, "", False)
    worst = max(compared.off)
    where = f"product {compared.off.index(worst)}"
    return concluded(worst, evidence.tolerance, compared.rows * len(map_), where, compared.is_mute)
