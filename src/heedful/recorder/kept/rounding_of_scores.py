"""What a map may owe to the rounding of scores, where operations of the model's own made them.

A kernel keeps scores in float32. A product by hand rounds each to the type of its queries, and a
scale or a bias rounds it once more: in bfloat16 a score of 20 is off by up to 0.06 each time, and
a weight, which is its exponential, by six hundredths of itself. A map computed from query and key
has none of that, and is nearer to the true one than the model's own, but it is not the model's own.

H heads, G of values, n rows, M keys, r directions.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN, Causes, entries_of, scores, sinks_of
from heedful.ops.cells import are_blind
from heedful.ops.evenly import evenly

CHANCE = 3.0  # deviations that three steps can add up to, each off by half a bit at most
SUMMED = 0.3  # deviation of a score by two orders of summing, in last bits of |query| · |key|
MOST = 1e9  # larger deviations of scores count as this one, whose square is finite in any sum
LOOKED_AT = 256  # rows of each sequence, or more where something stood beside the scores
ROUNDED = 1e-6  # by so much the weights of a row without a sink may lack to 1
LEAST = 1e-30  # what values are divided by, also where all are alike


@functools.cache
def deviation_of(types: tuple[torch.dtype, ...]) -> float:
    """The deviation of a score from 1 to 2 that was rounded to each of these types.

    Each step is off by up to half of its type's last bit, evenly.

    >>> deviation_of((torch.bfloat16,) * 3)
    0.00390625
    """
    return math.sqrt(sum((torch.finfo(kind).eps / 2) ** 2 / 3 for kind in types))


class Rounding(NamedTuple):
    """How a model has rounded scores.

    at_one: the deviation that it leaves in a score from 1 to 2.
    added: the largest number that stood beside the scores of a row, (H or 1, N or 1, 1).
    """

    at_one: float
    added: Tensor | None = None

    def beside(self, rows: Tensor) -> Tensor | None:
        """What stood beside the scores of some rows."""
        if self.added is None or self.added.shape[1] == 1:
            return self.added
        return self.added[:, rows]


def moved_scores(of: Causes, rows: Tensor, rounding: Rounding) -> Tensor:
    """The deviation of each score of some rows, (H, n, M).

    All from 16 to 32 are as coarse as 16 is. A product of 30 with a bias of −30 was rounded at 30,
    though their sum is 0.
    """
    bare = scores(of._replace(mask=None, bias=None), rows).abs_()
    if of.bias is not None:
        whole = scores(of, rows)
        bare = torch.maximum(bare, whole.masked_fill_(whole < HIDDEN / 2, 0.0).abs_())
    added = rounding.beside(rows)
    if added is not None:
        bare = torch.maximum(bare, added.to(bare))
    bare.nan_to_num_(nan=0.0)  # of a key that is no number, which a mask may hide
    begin = bare.clamp_(min=torch.finfo(bare.dtype).tiny).log2_().floor_().exp2_()
    return begin.mul_(rounding.at_one).add_(_of_sums(of, rows)).clamp_(max=MOST)


def _of_sums(of: Causes, rows: Tensor) -> Tensor:
    """How far apart scores of some rows are, (H, n, M), whose products are added up in two orders.

    Each of the d sums on the way is rounded, however small the score is that comes of them.
    """
    query, key = _lengths(of.query[:, rows], of.key)
    unit = SUMMED * torch.finfo(query.dtype).eps * abs(of.scale)
    return (query[..., None] * (unit * key)[:, None, None]).flatten(0, 1)


def _lengths(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The lengths of queries, (G, H/G, n), by the group that shares keys, and of keys, (G, M)."""
    # a row that is no number hides no other one
    of_queries, of_keys = (one.norm(dim=-1).nan_to_num(nan=0.0) for one in (query, key))
    return of_queries.unflatten(0, (len(key), -1)), of_keys


def moved_weights(logits: Tensor, moved: Tensor) -> Tensor:
    """How far off the weights of each row of logits (H, n, M) may be by such scores, (H, n).

    A weight is the logistic function of what its score has above the others', of which each is off
    by itself. So it is right too where scores are off by more than keys are apart. What is beside
    the largest weight is added up anew, since 1 minus that weight may round to 0.
    """
    logs = logits.log_softmax(dim=-1)
    map_, first = logs.exp(), logs.argmax(dim=-1, keepdim=True)
    other_logs = logs.scatter(-1, first, -math.inf).logsumexp(dim=-1, keepdim=True)
    above = logs - torch.log1p(-map_).scatter(-1, first, other_logs)
    others = (map_ * moved).square()
    others = (others.sum(dim=-1, keepdim=True) - others).clamp_(min=0.0)
    rest = (1 - map_).clamp(min=torch.finfo(map_.dtype).eps)
    far = CHANCE * (moved.square() + others / rest.square()).sqrt()
    off = [((above + one).sigmoid() - map_).abs() for one in (far, -far)]
    return torch.maximum(*off).amax(dim=-1)


def moved_rows(of: Causes, rows: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """The deviation of each score of some rows, and how far off their weights may be by it.

    These are (H, n, M) and (H, n). The share of a sink, whose logit is not rounded here, is one of
    the weights. A row that sees nothing has none that could move.
    """
    moved, logits = moved_scores(of, rows, rounding), scores(of, rows)
    blind = are_blind(logits.amax(dim=-1))
    if of.sinks is None:
        return moved, _of_numbers(moved_weights(logits, moved), blind)
    column = sinks_of(of.sinks, rows)[..., None].to(logits).expand(*logits.shape[:-1], 1)
    beside = torch.cat([logits, column], dim=-1), torch.nn.functional.pad(moved, (0, 1))
    return moved, _of_numbers(moved_weights(*beside), blind)


def _of_numbers(of_rows: Tensor, blind: Tensor) -> Tensor:
    """0 for a row that sees nothing or whose scores are no numbers, so that it hides no other."""
    return of_rows.masked_fill_(blind, 0.0).nan_to_num_(nan=0.0)


def farthest(of: Causes, rounding: Rounding, much: float) -> float:
    """How far off a weight may be in the rows that are looked at; 0 where it is nowhere as much.

    What it may be is no more than half of what a score may be, and that is known by its vectors
    and by what was added to their product.
    """
    H, _, M = of.shape
    sizes, found = _largest_products(of), [0.0]
    at_one = rounding.at_one + SUMMED * torch.finfo(of.query.dtype).eps
    for rows in _looked_at(sizes, rounding).split(max(1, entries_of(of.query) // (H * M))):
        size = float(sizes[:, rows].max()) + _largest_bias(of, rows)
        added = rounding.beside(rows)
        if added is not None:
            size = max(size, float(added.max()))
        if not CHANCE * at_one * size / 2 < much:
            found.append(float(moved_rows(of, rows, rounding)[1].max()))
    return max(found)


def _looked_at(sizes: Tensor, rounding: Rounding) -> Tensor:
    """Of N rows half of `LOOKED_AT`, evenly spread, and as many in all heads of the largest scores.

    Scores are of these sizes at most, (H, N). Where something stood beside them, also as many of
    the smallest ones, which it leaves the fewest digits, and where it differs, of its largest.
    """
    N = sizes.shape[1]
    if N <= LOOKED_AT:
        return evenly(N, N)
    rankings = [sizes]
    if rounding.added is not None:
        rankings.append((-sizes).masked_fill(sizes == 0, -math.inf))  # equal scores stay equal
        if rounding.added.shape[1] > 1:
            rankings.append(rounding.added[..., 0])
    most = [one.topk(max(1, LOOKED_AT // 2 // len(one))).indices for one in rankings]
    return torch.cat([evenly(N, LOOKED_AT // 2), *(one.flatten().cpu() for one in most)]).unique()


def _largest_products(of: Causes) -> Tensor:
    """The largest score that each query can have, (H, N), by its length and that of its keys."""
    query, key = _lengths(of.query, of.key)
    key = key.masked_fill(key >= torch.finfo(key.dtype).max, 0.0)  # else all rows would be alike
    return (query * (abs(of.scale) * key.amax(dim=-1))[:, None, None]).flatten(0, 1)


def _largest_bias(of: Causes, rows: Tensor) -> float:
    """How large the highest bias of a row is, at most, of some rows.

    Keys far below the highest have no weight.
    """
    if of.bias is None:
        return 0.0
    of_bias_alone = of._replace(query=of.query[..., :0], key=of.key[..., :0])
    highest = scores(of_bias_alone, rows).amax(dim=-1)
    return float(_of_numbers(highest, are_blind(highest)).abs().max())


def moved_outputs(map_: Tensor, moved: Tensor, value: Tensor) -> Tensor:
    """How far off weights times values (G, M, r) may be by such scores, (H, n, r).

    That is Σ w · ds · (value − output), of a row with a sink too, whose weights sum to less than 1.
    """
    mean = value.mean(dim=1, keepdim=True)
    value = value - mean  # else large values would hide how they differ
    share = 1 - map_.sum(dim=-1, keepdim=True)  # a sink's, or what rounding has left of 1
    lacking = weighed(share.masked_fill(share < ROUNDED, 0.0), mean)
    longest = value.abs().amax(dim=1, keepdim=True)
    sizes = lacking.abs().nan_to_num(nan=0.0)  # a row that is no number hides no other one
    most = sizes.reshape(len(value), -1, sizes.shape[-1]).amax(dim=1, keepdim=True)
    unit = torch.maximum(longest, most).clamp(min=LEAST)  # in which all squares are finite
    value, lacking = value / unit, _of_groups(lacking, 1 / unit)
    off = map_ * moved
    most_off = off.amax(dim=-1, keepdim=True).clamp_(min=LEAST)  # a sink may have left next to none
    off = off.div_(most_off).square_()
    output = weighed(map_, value) - lacking
    crossed = weighed(off, value).mul_(output).mul_(2)
    every = off.sum(dim=-1, keepdim=True)
    size = weighed(off, value.square()) - crossed + output.square() * every
    return _of_groups(size.clamp_(min=0.0).sqrt_().mul_(CHANCE * most_off), unit)


def _of_groups(table: Tensor, factor: Tensor) -> Tensor:
    """A table (H, n, r) times a factor (G, 1, r) of each group of heads."""
    return (table.reshape(len(factor), -1, table.shape[-1]) * factor).reshape(table.shape)


def weighed(map_: Tensor, value: Tensor) -> Tensor:
    """Weights times values; heads that share a value are one product, so that none is repeated."""
    made = map_.reshape(len(value), -1, map_.shape[-1]) @ value
    return made.reshape(len(map_), -1, value.shape[-1])
