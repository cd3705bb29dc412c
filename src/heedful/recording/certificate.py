"""Checks a call: weights from what is kept, times values, against the model's own output.

Of a call by hand the weights are those that its tape gives. The comparison then has the axes of the
product with the values, so that it says nothing of which axis is of texts, heads or queries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import ALL
from heedful.ops.inputs import AttentionInputs, unrounded
from heedful.ops.map_region import add_up, are_blind, softmax_rows
from heedful.ops.masks import Causal, Combined, Mask, Window
from heedful.recording.evidence import Evidence, are_finite, projected, worst_tolerance
from heedful.recording.mask_groups import Group, groups_of
from heedful.recording.real_tokens import RealTokens, take
from heedful.recording.tolerance import least, lost, rounding_of_sums

LEAST = 1e-30  # what values are divided by, also where all are alike
NOT_FINITE = "some values are not finite, or too large to be added up"
NO_OUTPUT = "the output of some head has no finite number in the rows that are compared"
NO_ROWS = "no query sees anything that can be compared"


@dataclass
class Check:
    """How far weights @ values was from the output that the model used, on sampled rows.

    `worst` is the difference in the worst head of any sequence, in units of how much the values of
    that head differ; NaN where it cannot be told, and `why` says why. `rows` is the number of rows
    that were compared in all sequences, and `where` says which head and sequence is worst.
    In `recording.certificate()`, `proof` and `layout` are the words for the call.
    """

    worst: float
    tolerance: float
    rows: int
    why: str = ""
    where: str = ""
    proof: str = ""
    layout: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.tolerance


class Compared(NamedTuple):
    """How far off each head is, infinitely where a number is not finite, on how many rows.

    is_mute: whether some head has rows that see something, none of which has a finite output.
    """

    off: list[float]
    rows: int
    is_mute: bool = False


@torch.no_grad()
def certify(
    causes: Iterable[AttentionInputs], tokens: Sequence[RealTokens], evidence: Evidence
) -> tuple[Check, bool]:
    """Compare rows recomputed from what is kept with the output that the model really used.

    `causes` is what is kept of each sequence, so that padding left out, a mask taken for a
    structure and a narrower type are all part of what is proved. With the check, whether the
    log-sum-exps that a kernel gave are those of the rows.
    """
    evidence = evidence.projected()
    values, outputs, sampled = evidence.values, evidence.outputs, evidence.rows
    if values is None or outputs is None or sampled is None:
        return Check(math.nan, evidence.tolerance, 0, evidence.why), False
    tolerance = max(evidence.tolerance, worst_tolerance(evidence.kinds, values.device))
    worst, rows, where, is_mute = 0.0, 0, "", False
    agree = evidence.sums is not None
    for group in groups_of(causes, tokens):
        keys = group.tokens.keys
        value = take(values[group.sequences], keys).flatten(0, 1)
        if not (evidence.is_whole or are_finite(value)):
            return Check(math.nan, tolerance, 0, NOT_FINITE), False
        with unrounded(group.causes.query):
            compared, is_near = _compared(group, value, outputs, sampled, evidence, tolerance)
        if compared is None:
            continue
        rows += compared.rows * len(group.sequences)
        agree, is_mute = agree and is_near, is_mute or compared.is_mute
        most = max(compared.off)
        if most > worst:
            each = len(compared.off) // len(group.sequences)
            sequence, head = divmod(compared.off.index(most), each)
            worst, where = most, f"head {head} of sequence {group.sequences[sequence]}"
    return concluded(worst, tolerance, rows, where, is_mute), agree


def concluded(worst: float, tolerance: float, rows: int, where: str, is_mute: bool) -> Check:
    """The check that some comparisons make."""
    if worst <= tolerance and (is_mute or not rows):
        return Check(math.nan, tolerance, 0, NO_OUTPUT if is_mute else NO_ROWS)
    return Check(worst, tolerance, rows, where=where)


def _compared(
    group: Group, value: Tensor, outputs: Tensor, rows: Tensor, evidence: Evidence, tolerance: float
) -> tuple[Compared | None, bool]:
    """Compare sampled rows of some sequences; and whether a kernel's log-sum-exps are theirs."""
    queries, keys, _ = group.tokens
    is_real = torch.isin(rows, queries)
    places = torch.searchsorted(queries, rows[is_real])
    if not (len(places) and len(keys)):
        return None, True
    of = group.causes.of_heads(ALL)
    map_, highest = softmax_rows(of.in_precision(), places, _table(of, places))
    agree = True
    if evidence.sums is not None or of.sinks is not None:
        sums = add_up(of, places, map_, highest)
    if evidence.sums is not None:
        given = evidence.sums[group.sequences][..., rows[is_real]].flatten(0, 1)
        agree = _agree(of, places, sums, given)
    blind = are_blind(highest)
    used = outputs[group.sequences][:, :, is_real].to(map_)
    if evidence.finish is not None:
        return _at_the_end(map_, value.to(map_), used[:, 0], blind, group, evidence, places), agree
    used = used.flatten(0, 1)
    used = used if evidence.is_whole else projected(used)
    return compare(map_, value.to(map_), used, blind, evidence.kinds, tolerance), agree


def compare(
    map_: Tensor, value: Tensor, used: Tensor, blind: Tensor, kinds: frozenset[torch.dtype],
    tolerance: float,
) -> Compared | None:  # fmt: skip
    """Compare weights (H, n, M) times values (G, M, r) with an output; None if all rows are blind.

    `blind` (H, n) are rows that see nothing, whose output differs from kernel to kernel.
    """
    if bool(blind.all()):
        return None
    made = _weighed(map_, value)
    step = max(map(lost, kinds)) / tolerance
    apart = (value - value.mean(dim=1, keepdim=True)).abs_().add_(step * value.abs())
    faint = max(map(least, kinds)) / tolerance * value.abs().sum(dim=1, keepdim=True)
    size = _weighed(map_, apart) + faint.repeat_interleave(len(map_) // len(value), dim=0)
    return _off(made, used, size, blind, map_)


def _off(made: Tensor, used: Tensor, size: Tensor, blind: Tensor, map_: Tensor) -> Compared:
    """How far off each head is on rows that are not blind, in units of `size`."""
    if not bool(blind.any()):  # in the usual case all numbers are finite, which their sum tells
        largest = size.amax(dim=(1, 2)).clamp(min=LEAST)
        off = (made - used).abs_().amax(dim=(1, 2)) / largest
        if math.isfinite(float((off + largest).sum())):
            return Compared(off.tolist(), made.shape[1])
    same = (made == used) | (made.isnan() & used.isnan())
    # a row says nothing where the output is not finite either; and torch's kernel for CPUs gives
    # zeros for a row whose weights are NaN where there are few keys
    no_weights = map_.isnan().all(dim=-1) & (used == 0).all(dim=-1)
    mute = (same.all(dim=-1) & ~used.isfinite().any(dim=-1)) | no_weights
    mute &= ~blind
    is_mute = bool((mute.any(dim=-1) & (mute | blind).all(dim=-1)).any())
    left_out = blind | mute
    off = (made - used).abs().masked_fill(same | left_out[..., None], 0.0).nan_to_num(nan=math.inf)
    size = size.nan_to_num(posinf=0.0).masked_fill(left_out[..., None], 0.0)
    off = off.amax(dim=(1, 2)) / size.amax(dim=(1, 2)).clamp(min=LEAST)
    return Compared(off.tolist(), int((~left_out).any(dim=0).sum()), is_mute)


def _at_the_end(
    map_: Tensor, value: Tensor, used: Tensor, blind: Tensor, group: Group, evidence: Evidence,
    places: Tensor,
) -> Compared | None:  # fmt: skip
    """Compare the output of a whole layer in each sequence, where nothing but its end is seen."""
    if evidence.finish is None or evidence.values is None or bool(blind.all()):
        return None
    each = len(group.sequences), -1
    made = _weighed(map_, value).masked_fill(blind[..., None], 0.0)
    joined = made.unflatten(0, each).transpose(1, 2).flatten(2).to(evidence.values.dtype)
    where = torch.tensor(group.sequences, device="cpu")[:, None], group.tokens.queries[places]
    made = evidence.finish(joined, where).to(made)
    blind = blind.unflatten(0, each).any(dim=1)
    return _off(made, used, used.abs(), blind, map_.unflatten(0, each)[:, 0])


def _weighed(map_: Tensor, value: Tensor) -> Tensor:
    """Weights (H, n, M) times values (G, M, r), which groups of heads share: (H, n, r)."""
    if len(map_) == len(value):
        return map_ @ value
    together = map_.unflatten(0, (len(value), -1)).flatten(1, 2) @ value
    return together.reshape(*map_.shape[:2], value.shape[-1])


def _agree(of: AttentionInputs, rows: Tensor, sums: Tensor, given: Tensor) -> bool:
    """Whether log-sum-exps that a kernel gave are those of rows, where these see something.

    Not as torch is set to round now: when rows are compared later, it may be set otherwise.
    """
    given = given.to(sums)
    is_near = (sums - given).abs() <= rounding_of_sums(of, sums, rows, narrowed=False)
    is_unknown = (sums == -math.inf) | given.isnan()
    return bool((is_near | is_unknown).all())


def _table(of: AttentionInputs, rows: Tensor) -> Tensor | None:
    """The mask of the rows that are compared; None where none was made that layers share."""
    parts = of.mask.parts if isinstance(of.mask, Combined) else (of.mask,)
    if not all(isinstance(part, Causal | Window) for part in parts):  # without tensors
        return None
    return _made_once(parts, of.shape, tuple(rows.tolist()), of.query.device)


@functools.lru_cache(maxsize=8)
def _made_once(
    parts: tuple[Mask, ...], shape: tuple[int, ...], rows: tuple[int, ...], device: Any
) -> Tensor:
    return Combined(parts).between(shape, torch.tensor(rows, device="cpu"), None, device)


def check_replayed(evidence: Evidence, weights: Callable[[], Tensor]) -> Callable[[], Check]:
    """The check of a call by hand, to be made when it is first needed.

    `weights` gives the weights (b, N, M), as they met the values (b, M, v) of the evidence.
    """
    return functools.partial(_check_replayed, evidence, weights)


@torch.no_grad()
def _check_replayed(evidence: Evidence, weights: Callable[[], Tensor]) -> Check:
    evidence = evidence.projected()
    values, outputs, rows = evidence.values, evidence.outputs, evidence.rows
    if values is None or outputs is None or rows is None:
        return Check(math.nan, evidence.tolerance, 0, evidence.why)
    tables = weights()[..., rows, :], values, outputs
    map_, values, outputs = (table.reshape(-1, *table.shape[-2:]) for table in tables)
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
    worst, rows_compared = max(compared.off), compared.rows * len(map_)
    where = f"product {compared.off.index(worst)}"
    return concluded(worst, evidence.tolerance, rows_compared, where, compared.is_mute)
