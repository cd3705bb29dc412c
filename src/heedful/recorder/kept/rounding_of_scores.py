"""What a map may owe to the rounding of scores, where operations of the model's own made them.

A kernel keeps scores in float32. A product by hand rounds each to the type of its queries, and a
scale or a bias rounds it once more: in bfloat16 a score of 20 is off by up to 0.06 each time, and
a weight, which is its exponent, by six hundredths of itself. A map computed from query and key has
none of that, and is nearer to the true one than the model's own, but it is not the model's own.

H heads, G of values, n rows, M keys, r directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN, Causes, scores

CHANCE = 3.0  # deviations that three steps can add up to, each off by half a bit at most

LEAST = 1e-30  # what values are divided by, also where all are alike


def of_scores(rounded: Iterable[torch.dtype]) -> float:
    """The deviation of a score from 1 to 2 that was rounded to each of these types.

    Each step is off by up to half of its type's last bit, evenly.

    >>> of_scores([torch.bfloat16] * 3)
    0.00390625
    """
    return math.sqrt(sum((torch.finfo(kind).eps / 2) ** 2 / 3 for kind in rounded))


def moved_scores(of: Causes, rows: Tensor, at_one: float) -> Tensor:
    """The deviation of each score of some rows, (H, n, M), where that of one from 1 to 2 is known.

    All from 16 to 32 are as coarse as 16 is. A product of 30 with a bias of −30 was rounded at 30,
    though their sum is 0.
    """
    bare = scores(of._replace(mask=None, bias=None), rows).abs_()
    if of.bias is not None:
        whole = scores(of, rows)
        bare = torch.maximum(bare, whole.masked_fill_(whole < HIDDEN / 2, 0.0).abs_())
    return (bare.frexp().exponent - 1).exp2().to(bare).mul_(at_one)


def moved_weights(map_: Tensor, moved: Tensor) -> float:
    """How far off a weight of a map (H, n, M) may be by scores that are off by `moved`.

    A softmax gives dw = w · (ds − Σ w · ds), and each score is off by itself.
    """
    every = (map_ * moved).square().sum(dim=-1, keepdim=True)
    off = map_.square() * ((1 - 2 * map_) * moved.square() + every)
    return CHANCE * math.sqrt(max(float(off.max()), 0.0))


def moved_outputs(map_: Tensor, moved: Tensor, value: Tensor) -> Tensor:
    """How far off weights times values (G, M, r) may be by such scores, (H, n, r).

    That is Σ w · ds · (value − output).
    """
    value = value - value.mean(dim=1, keepdim=True)  # else large values would hide how they differ
    longest = value.abs().amax(dim=1, keepdim=True)
    value = value / longest.clamp(min=LEAST)  # whose squares are finite, each column in its units
    off = (map_ * moved).square()
    output = weighed(map_, value)
    crossed = weighed(off, value).mul_(output).mul_(2)
    every = off.sum(dim=-1, keepdim=True)
    size = weighed(off, value.square()) - crossed + output.square() * every
    size = size.clamp_(min=0.0).sqrt_().mul_(CHANCE)
    return (size.reshape(len(value), -1, size.shape[-1]) * longest).reshape(size.shape)


def weighed(map_: Tensor, value: Tensor) -> Tensor:
    """Weights times values; heads that share a value are one product, so that none is repeated."""
    made = map_.reshape(len(value), -1, map_.shape[-1]) @ value
    return made.reshape(len(map_), -1, value.shape[-1])
