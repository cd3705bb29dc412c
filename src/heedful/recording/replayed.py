"""Checks a call by hand: the weights that its tape gives, times values, against the output.

The comparison has the axes of the product with the values, so that it says nothing of which axis is
of texts, heads or queries. What is kept of the call is compared with these weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from heedful.ops.causes import unrounded
from heedful.ops.cells import add_up, are_blind, softmax_rows
from heedful.ops.score_tables import ALL
from heedful.recording.capture import Capture
from heedful.recording.certificate import NOT_FINITE, Check, compare, concluded
from heedful.recording.evidence import Evidence, are_finite, projected, sampled
from heedful.recording.groups import groups_of
from heedful.recording.rounding import TOLERANCE


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


@torch.no_grad()
def are_given_by(capture: Capture, weights: Tensor, kept_in: torch.dtype | None) -> bool:
    """Whether what is kept of a call gives a few rows of its map, as far as rounding explains.

    Args:
        capture: the call, by what its weights are a function of.
        weights: (S, H, N, M), the map.
        kept_in: a narrower type than the model's in which queries and keys are kept; None for none.
    """
    wide = torch.promote_types(weights.dtype, torch.float32)
    near = max(TOLERANCE[wide], 0.0 if kept_in is None else TOLERANCE[kept_in])
    causes = (capture.causes_of(row) for row in range(len(weights)))
    for sequences, of, (queries, keys, _) in groups_of(causes, capture.tokens):
        if not (len(queries) and len(keys)):
            continue
        rows, of = sampled(len(queries)), of.of_heads(ALL).in_precision()
        made, highest = softmax_rows(of, rows)
        if of.sinks is not None:
            add_up(of, rows, made, highest)
        made = made.masked_fill(are_blind(highest)[..., None], 0.0)
        used = weights[sequences][:, :, queries[rows]][..., keys].flatten(0, 1)
        if not bool(((made - used).abs() <= near).all()):
            return False
    return True
