"""Checks a call: weights from what is kept, times values, against the model's own output."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN, Causes, unrounded
from heedful.ops.cells import add_up, are_blind, softmax_rows
from heedful.ops.masks import Causal, Combined, Mask, Window
from heedful.ops.score_tables import ALL
from heedful.recording.evidence import (
    Evidence,
    are_numbers,
    projected,
    rows_sampled,
    sampled,
    worst_tolerance,
)
from heedful.recording.groups import Group, groups_of, values_of
from heedful.recording.rounding import TOLERANCE, least, lost, rounding_of_sums
from heedful.recording.rounding_of_scores import (
    LEAST,
    Rounding,
    deviation_of,
    farthest,
    moved_outputs,
    moved_rows,
    weighed,
)
from heedful.recorder.owners.padding import Layout

# Where what was added to an output is rounded by this share of how much the values differ, as the
# coarsest type rounds them, nothing more can be told of its weights
BLURRED = max(TOLERANCE.values())
MUCH = 1e-3  # what scores of 32 bits or more may move a weight by; in half precision it is BLURRED
FLIPPED = 2.0  # by so many times what is expected of the rounding of a row it may be off
HIDING = "what was added to weights times values is so large that its rounding hides them"
NO_NUMBERS = "some values are no numbers, or too large to be added up"
NO_OUTPUT = (
    "what a head gave says nothing of its weights: it has no finite number, or zeros where the "
    "weights are no numbers"
)
UNSURE = "the model's own rounding of scores as large as these may move a weight by {:.2g}"


@dataclass
class Check:
    """How far weights @ values was from the output that the model used, on sampled rows.

    `worst` is the difference in the worst head of any sequence, in units of how much the values of
    that head differ, both in the directions on which these are projected; NaN where it cannot be
    told, and `why` says why. `rows` is the number of rows that were compared in all sequences, and
    `where` says which head and sequence is worst.
    In `recording.certificate()`, `proof` is the word for the call, and `why` all that is missing.
    """

    worst: float
    tolerance: float
    rows: int
    why: str = ""
    where: str = ""
    proof: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.tolerance


@torch.no_grad()
def certify(
    causes: Iterable[Causes], layouts: Sequence[Layout], evidence: Evidence
) -> tuple[Check, bool]:
    """Compare rows recomputed from what is kept with the output that the model really used.

    Args:
        causes: what is kept of each sequence, so that padding left out, a mask taken for a
            structure and a narrower type are all part of what is proved.
        layouts: the layout of each sequence.
        evidence: what is held of the values and the output of the same heads.

    Returns:
        the check, and whether the log-sum-exp that a kernel gave is that of the rows.
    """
    evidence = evidence.settled()
    if evidence.values is None:
        return Check(math.nan, evidence.tolerance, 0, evidence.why), False
    now = worst_tolerance(evidence.kinds, evidence.values.device)
    tolerance = max(evidence.tolerance, now)  # of the model's products, and of those here
    worst, rows, where, blur, unsure = 0.0, 0, "", 0.0, 0.0
    agree, is_mute = bool(evidence.row_sums), False
    for group in groups_of(causes, layouts):
        if not (evidence.is_whole or are_numbers(values_of(group, evidence.values))):
            return Check(math.nan, tolerance, 0, NO_NUMBERS), False
        with unrounded(group.causes.query):
            found = _compared(group, evidence, tolerance)
        if found is None:
            continue
        off, is_mute = found.off, is_mute or found.is_mute
        rows += found.rows * len(group.sequences)
        agree = agree and found.agree
        most, blur, unsure = max(off), max(blur, found.blur), max(unsure, found.unsure)
        if most > worst:
            sequence, head = divmod(off.index(most), len(off) // len(group.sequences))
            worst, where = most, f"head {head} of sequence {group.sequences[sequence]}"
    if is_mute and worst <= tolerance:
        return Check(math.nan, tolerance, 0, NO_OUTPUT), False
    if not rows:
        return Check(math.nan, tolerance, 0, "no query sees anything that can be compared"), False
    if worst <= tolerance and not tolerance * blur <= BLURRED:
        return Check(math.nan, tolerance, 0, HIDING), False
    if worst <= tolerance and not unsure <= _much_of(tolerance):
        return Check(math.nan, tolerance, 0, UNSURE.format(unsure)), False
    return Check(worst, tolerance, rows, where=where), agree


class _Compared(NamedTuple):
    """What the comparison of a group of sequences gave.

    off: how far off each head is on sampled rows that see something, infinitely where a number is
        none; where only the output of all heads together can be seen, one number for all of them.
    rows: the number of these rows in each sequence.
    agree: whether their log-sum-exps are those that a kernel gave.
    blur: how far the rounding of what was added moves the worst head, in units of its tolerance.
    unsure: how far the rounding of scores may have moved a weight, where that is much.
    is_mute: whether some head has rows that see something, and none of them says anything of its
        weights: it gave no finite number, or zeros where the weights are no numbers.
    """

    off: list[float]
    rows: int
    agree: bool = False
    blur: float = 0.0
    unsure: float = 0.0
    is_mute: bool = False


class _Shown(NamedTuple):
    """Sampled rows of one sequence, as they are computed from what is kept, and as they were.

    map_ (H, n, M), highest (H, n): their weights, and the highest logit of each.
    value (G, M, r), made (H, n, r): the values, and weights times values.
    used (H, n, r): what the output has of weights times values.
    rest (H, n, r): what was taken off the output for that; None where nothing was.
    """

    map_: Tensor
    highest: Tensor
    value: Tensor
    made: Tensor
    used: Tensor
    rest: Tensor | None


def _compared(group: Group, evidence: Evidence, tolerance: float) -> _Compared | None:
    """Compare sampled rows of some sequences; None where no query sees anything."""
    queries, keys, _ = group.layout
    if not (len(queries) and len(keys)) or evidence.values is None:
        return None
    rows = sampled(len(queries))
    of = group.causes.of_heads(ALL)
    precise = of.in_precision()
    map_, highest = softmax_rows(precise, rows, _table(of))
    agree = False
    if evidence.row_sums or of.sinks is not None:
        sums = add_up(of, rows, map_, highest)
        agree = bool(evidence.row_sums) and _agree(of, rows, sums, group.of_all(evidence.row_sums))
    value = values_of(group, evidence.values).to(map_)
    made = weighed(map_, value)
    shown = _Shown(map_, highest, value, made, *_taken_off(evidence, group, map_))
    added = group.of_heads(evidence.added_to_scores) if evidence.added_to_scores else None
    rounding, owed = Rounding(evidence.deviation, added), None
    unsure = farthest(precise, rounding, _much_of(tolerance))
    if unsure:
        owed, far = _owed(precise, rows, shown, rounding)
        unsure = max(unsure, far)
    if evidence.finish is not None:
        found = _off_at_the_end(shown, evidence, group)
        if found and not unsure <= _much_of(tolerance):
            found = found._replace(off=[0.0])  # it tells nothing of such weights; `certify` does
        return found and found._replace(agree=agree, unsure=unsure)
    found = _off(shown, evidence, tolerance, owed)
    if found and not max(found.off) <= tolerance:
        # it may be owed to how scores were rounded, which takes as long to tell as all else
        beyond = _beyond(found.off, len(group.sequences), tolerance)
        if len(beyond) < len(group.sequences):
            again = _compared(group.of(beyond), evidence, tolerance)
            return _replaced(found, again, beyond)._replace(agree=agree)
        owed, far = _owed(precise, rows, shown, rounding)
        of_bias = 0.0
        if not evidence.deviation:  # a kernel
            shown, of_bias = _nearer(shown, precise, rows, rounding)
        found, unsure = _off(shown, evidence, tolerance, owed), max(unsure, far, of_bias)
    return found and found._replace(agree=agree, unsure=unsure)


def _beyond(off: list[float], sequences: int, tolerance: float) -> list[int]:
    """The places of the sequences of which some head is off by more than the tolerance."""
    each = len(off) // sequences
    worst = [max(off[i : i + each]) for i in range(0, len(off), each)]
    return [place for place, most in enumerate(worst) if not most <= tolerance]


def _replaced(found: _Compared, again: _Compared | None, places: list[int]) -> _Compared:
    """A comparison with that of the sequences at some places replaced."""
    if again is None:
        return found
    off, each = list(found.off), len(again.off) // len(places)
    for i, place in enumerate(places):
        off[place * each : (place + 1) * each] = again.off[i * each : (i + 1) * each]
    worse = {name: max(getattr(found, name), getattr(again, name)) for name in ("blur", "unsure")}
    return found._replace(off=off, is_mute=found.is_mute or again.is_mute, **worse)


def _off(
    shown: _Shown, evidence: Evidence, tolerance: float, owed: Tensor | None
) -> _Compared | None:
    """How far off rows are, beside what `owed` (H, n, r) leaves to the rounding of scores."""
    map_, highest, value, made, used, rest = shown
    step, unknown, blur = max(map(lost, evidence.kinds)) / tolerance, None, 0.0
    longest = value.abs() if evidence.is_whole else value.abs().amax(dim=-1, keepdim=True)
    size = _spread(map_, value, step * longest, max(map(least, evidence.kinds)) / tolerance)
    if rest is not None:
        unknown = ~rest.isfinite().all(dim=-1)  # where nothing else is seen
        rest = rest.masked_fill(unknown[..., None], 0.0)
        blur = _largest_share(step * rest.abs(), size)
        size = size + step * rest.abs()
    if owed is not None:
        size = size + owed / tolerance
    every = _off_everywhere(made, used, size, highest)
    if every is not None:
        return _Compared(every, made.shape[1], blur=blur)
    made, blind, silent = _seeing(shown, evidence)
    if unknown is not None:
        blind = blind | unknown
    return _off_where_seen(made, used, size, blind, map_.isfinite().all(dim=-1), silent, blur)


def _seeing(shown: _Shown, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    """Weights times values, which rows (H, n) are blind, and which are silent.

    The output of a row that sees nothing differs from kernel to kernel, and is no attention. A row
    is silent whose weights are no numbers, while its output is zeros: so torch's kernel for CPUs
    has it where there are few keys.
    """
    made, used, blind = shown.made, shown.used, are_blind(shown.highest)
    if evidence.is_by_hand:
        made = made.masked_fill(blind[..., None], 0.0)
        blind = blind & ~(used.isfinite() & (used != 0)).any(dim=-1)
        return made, blind, torch.zeros_like(blind)
    gave_zeros = (used == 0).all(dim=-1)  # of each head, or of all heads of a sequence together
    gave_zeros = gave_zeros.repeat_interleave(len(blind) // len(gave_zeros), dim=0)
    return made, blind, shown.map_.isnan().all(dim=-1) & gave_zeros


def _off_at_the_end(shown: _Shown, evidence: Evidence, group: Group) -> _Compared | None:
    """How far off the output of a layer is in each sequence, where nothing but its end is seen."""
    made, blind, _ = _seeing(shown, evidence)
    if evidence.finish is None or evidence.values is None or bool(blind.all()):
        return None
    each = len(group.sequences), -1
    joined = made.unflatten(0, each).transpose(1, 2).flatten(2).to(evidence.values.dtype)
    where = torch.tensor(group.sequences, device="cpu")[:, None], rows_sampled(group.layout)
    made = evidence.finish(joined, where).to(made)
    blind = blind.unflatten(0, each).any(dim=1)
    are_finite = shown.map_.isfinite().all(dim=-1).unflatten(0, each).any(dim=1)
    return _off_where_seen(made, shown.used, shown.used.abs(), blind, are_finite)


def _much_of(tolerance: float) -> float:
    """How far off a weight may be by the rounding of scores for a call to be proved."""
    return BLURRED if tolerance > MUCH else MUCH


def _owed(of: Causes, rows: Tensor, shown: _Shown, rounding: Rounding) -> tuple[Tensor, float]:
    """How far off weights times values may be, (H, n, r), as scores are rounded; and a weight."""
    moved, far = moved_rows(of, rows, rounding)
    return _owed_to_scores(shown.map_, moved, far, shown.value), float(far.max())


def _nearer(shown: _Shown, of: Causes, rows: Tensor, rounding: Rounding) -> tuple[_Shown, float]:
    """The same with each row of the output as near as the sum of its scores with a bias lets it be,
    and how far off a weight may be by that.

    A kernel rounds that sum, and so does what is computed here: most scores come out the same, a
    few one last bit apart. One row with a large bias says nothing of the others.
    """
    if of.bias is None:
        return shown, 0.0
    moved, far = moved_rows(of, rows, rounding._replace(at_one=deviation_of((of.query.dtype,))))
    spare = FLIPPED * moved_outputs(shown.map_, moved, shown.value).nan_to_num(nan=0.0)
    nearer = (shown.made - shown.used).clamp(-spare, spare).nan_to_num(nan=0.0)
    return shown._replace(used=shown.used + nearer), float(far.max())


def _owed_to_scores(map_: Tensor, moved: Tensor, far: Tensor, value: Tensor) -> Tensor:
    """How far off weights times values may be, (H, n, r), by scores that are off by `moved`.

    Where weights may be so `far` off that they tell nothing, it is anywhere among the values.
    """
    anywhere = torch.where(far > BLURRED, 2 * far, 0.0)[..., None]
    apart = (value.amax(dim=1, keepdim=True) - value.amin(dim=1, keepdim=True)).nan_to_num()
    owed = moved_outputs(map_, moved, value) + weighed(anywhere, apart)
    return owed.nan_to_num(nan=0.0)  # a row that is no number leaves no more to others


def _taken_off(evidence: Evidence, group: Group, kind: Tensor) -> tuple[Tensor, Tensor | None]:
    """Sampled rows of the output as weights times values give them, and what was taken off them.

    Both are projected as the values are; the rounding of what was taken off is still in them.
    """
    used, rest = group.of_all(evidence.outputs).to(kind), None
    if evidence.added:
        rest = group.of_all(evidence.added).to(kind)
        used, rest = (used - rest) / evidence.times, rest / evidence.times
    if evidence.is_whole:
        return used, rest
    return projected(used), None if rest is None else projected(rest)


def _largest_share(rounded: Tensor, size: Tensor) -> float:
    """How large rounding is beside what a head differs by, in the head where that is most."""
    # a row that is no number hides no other one
    rounded, size = rounded.masked_fill(size.isnan(), 0.0), size.nan_to_num(nan=0.0)
    share = rounded.amax(dim=(1, 2)) / size.amax(dim=(1, 2)).clamp(min=LEAST)
    return float(share.nan_to_num(nan=0.0).max())


def _off_everywhere(
    made: Tensor, used: Tensor, size: Tensor, highest: Tensor
) -> list[float] | None:
    """How far off each head is; None where some row sees nothing, or some number is none.

    That is known by one look at all of it, for which alone a device is waited for.
    """
    off = (made - used).abs_().amax(dim=(1, 2))
    found = torch.stack((highest.amin(dim=1), off, size.amax(dim=(1, 2))))
    lowest, most, largest = found.tolist()
    every = [one / max(other, LEAST) for one, other in zip(most, largest, strict=True)]
    is_sound = math.isfinite(sum(every) + sum(largest))
    return every if min(lowest) > HIDDEN / 2 and is_sound else None


def _off_where_seen(
    made: Tensor,
    used: Tensor,
    size: Tensor,
    blind: Tensor,
    finite: Tensor,
    silent: Tensor | None = None,
    blur: float = 0.0,
) -> _Compared | None:
    """How far off each head is on rows that are not blind; infinitely where a number is none.

    None where all rows are blind.

    Args:
        blind, finite, silent: (H, n), which rows see nothing, the weights of which are numbers, and
            which say nothing of their weights.
    """
    if bool(blind.all()):
        return None
    same = (made == used) | (made.isnan() & used.isnan())
    # times values that are NaN, any weights give NaN
    mute = finite & ~blind & same.all(dim=-1) & ~used.isfinite().any(dim=-1)
    if silent is not None:
        mute = mute | (silent & ~blind)
    is_mute = bool((mute.any(dim=-1) & (mute | blind).all(dim=-1)).any())
    blind = blind | mute
    off = (made - used).abs().masked_fill(same | blind[..., None], 0.0).nan_to_num(nan=math.inf)
    size = size.nan_to_num(posinf=0.0).masked_fill(blind[..., None], 0.0)
    off = off.amax(dim=(1, 2)) / size.amax(dim=(1, 2)).clamp(min=LEAST)
    return _Compared(off.tolist(), int((~blind).any(dim=0).sum()), blur=blur, is_mute=is_mute)


def _agree(of: Causes, rows: Tensor, sums: Tensor, given: Tensor) -> bool:
    """Whether log-sum-exps that a kernel gave are those of rows, where these see something.

    With no regard to how torch is set to round now: when rows are compared later, it may not be.
    """
    given = given.to(sums)
    is_near = (sums - given).abs() <= rounding_of_sums(of, sums, rows, narrowed=False)
    is_unknown = (sums == -math.inf) | given.isnan()
    return bool((is_near | is_unknown).all())


def _table(of: Causes) -> Tensor | None:
    """The mask of the rows that are compared; None where none was made that layers share."""
    parts = of.mask.parts if isinstance(of.mask, Combined) else (of.mask,)
    is_structure = all(isinstance(part, Causal | Window) for part in parts)  # without tensors
    return _made_once(parts, of.shape, of.query.device) if is_structure else None


@functools.lru_cache(maxsize=8)
def _made_once(
    parts: tuple[Mask, ...], shape: tuple[int, int, int], device: torch.device
) -> Tensor:
    return Combined(parts).between(shape, sampled(shape[1]), None, device)


def _spread(map_: Tensor, value: Tensor, rounded: Tensor, faint: float) -> Tensor:
    """By how much the values that rows weigh differ, and what rounding changes, (H, n, r).

    A weight may have become 0, as the type that it was rounded to has none so small: the least that
    it has is `faint`, in units of the tolerance as `rounded` is.
    """
    lacking = faint * value.abs().sum(dim=1, keepdim=True)
    apart = (value - value.mean(dim=1, keepdim=True)).abs_()
    made = weighed(map_, apart.add_(rounded))
    return (made.reshape(len(value), -1, value.shape[-1]) + lacking).reshape(made.shape)
