"""Sums that are not rounded: in any order, and shared out in any way, they are the same to the bit.

Floats do not add up so: (a + b) + c differs from a + (b + c) in the last bit, and a mean over a
thousand texts would depend on which process took which. Here a number is written in digits of 32
bits, of which the first is its whole part. Digits are integers, so adding them up rounds nothing,
and the mean is rounded once, at its end.

Source: the long accumulator of Kulisch and Miranker 1986, *The arithmetic of the digital computer:
a new approach* (SIAM Review 28).

>>> tenths = torch.tensor([0.1] * 10)  # of which each is a little more than a tenth
>>> total = Total.of(tenths[:3]).plus(Total.of(tenths[3:]))
>>> total.mean() == tenths[0].double(), tenths.sum() == 10 * tenths[0].double()
(tensor(True), tensor(False))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heedful.errors import ArgumentError

BITS, DIGITS = 32, 6  # the last digit counts in 2⁻¹⁶⁰; the smallest float32 is 2⁻¹⁴⁹
MOST = 2.0**31  # so large is no score: 2³¹ such numbers have room in the first digit


class Total(NamedTuple):
    """The sum of numbers, for each head or whatever else the axes before are, and how many.

    digits: (…, DIGITS) int64; digit i counts in 2^(−32·i). A sum of up to 2³¹ numbers has room, and
        so have 2³¹ sums together. counts: (…), int64.
    """

    digits: Int[Tensor, "*axes 6"]
    counts: Int[Tensor, "*axes"]

    @classmethod
    def of(cls, values: Float[Tensor, "*axes n"]) -> Total:
        """The sum over the last axis; NaN is no number, and is left out.

        A number of float64 is first cut to a multiple of 2⁻¹⁶⁰; float32 is exact.

        Raises:
            ArgumentError: infinity, or a number of 2³¹ or more.
        """
        rest = values.detach().cpu().double()
        is_number = ~rest.isnan()
        rest = rest.nan_to_num(nan=0.0)
        if rest.numel() and float(rest.abs().max()) >= MOST:
            raise ArgumentError(
                f"a number of {float(rest.abs().max()):g} to add up", expected="less than 2³¹"
            )
        digits = torch.zeros(*rest.shape[:-1], DIGITS, dtype=torch.long, device="cpu")
        for i in range(DIGITS):
            whole = rest.trunc()  # what is left of it has as many bits, or fewer
            digits[..., i] = whole.long().sum(dim=-1)
            rest = (rest - whole) * 2.0**BITS
            if not rest.any():
                break
        return cls(_carried(digits), is_number.sum(dim=-1))

    def plus(self, other: Total) -> Total:
        """Both together."""
        return Total(self.digits + other.digits, self.counts + other.counts)

    def mean(self) -> Float[Tensor, "*axes"]:
        """The mean, float64, rounded once; NaN where there is no number."""
        digits = self.digits.reshape(-1, DIGITS).tolist()
        found = [*map(_quotient, digits, self.counts.flatten().tolist())]
        return torch.tensor(found, dtype=torch.float64, device="cpu").view(self.counts.shape)


def _carried(digits: Tensor) -> Tensor:
    """The same sum with every digit but the first below 2³²; in place."""
    for i in range(DIGITS - 1, 0, -1):
        digits[..., i - 1] += digits[..., i] >> BITS
        digits[..., i] &= (1 << BITS) - 1
    return digits


def _quotient(digits: list[int], count: int) -> float:
    """Python divides integers of any length, and rounds what comes of it once."""
    if not count:
        return float("nan")
    whole = sum(digit << BITS * (DIGITS - 1 - i) for i, digit in enumerate(digits))
    return whole / (count << BITS * (DIGITS - 1))
