"""Exact sums of floats: the same to the last bit in any order and over any number of processes.

Floating-point addition is not associative: (a + b) + c can differ from a + (b + c) in the last bit,
so a mean over a thousand texts would depend on which process read which text. Here each number is
split into integer digits of 32 bits; the first digit is the integer part. Integers add without
rounding; only the final mean is rounded, once.

Source: the long accumulator of Kulisch and Miranker 1986, *The arithmetic of the digital computer:
a new approach* (SIAM Review 28).

>>> tenths = torch.tensor([0.1] * 10)  # 0.1 is not exact in binary
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

BITS, DIGITS = 32, 6  # the unit of the last digit is 2⁻¹⁶⁰; the smallest float32 is 2⁻¹⁴⁹
LIMIT = 2.0**31  # every statistic is smaller; the first digit can hold the sum of 2³¹ such numbers


class Total(NamedTuple):
    """An exact sum and the count of its numbers, for each index of the leading axes.

    digits: (…, DIGITS), int64; the unit of digit i is 2^(−32·i). They can hold 2³¹ summands.
    counts: (…), int64.
    """

    digits: Int[Tensor, "*axes 6"]
    counts: Int[Tensor, "*axes"]

    @classmethod
    def of(cls, values: Float[Tensor, "*axes n"]) -> Total:
        """Add the numbers along the last axis; NaN is skipped.

        Sums of float32 are exact; float64 numbers are first truncated to multiples of 2⁻¹⁶⁰.

        Raises:
            ArgumentError: a magnitude of 2³¹ or more, or infinity.
        """
        rest = values.detach().cpu().double()
        is_number = ~rest.isnan()
        rest = rest.nan_to_num(nan=0.0)
        if rest.numel() and float(rest.abs().max()) >= LIMIT:
            raise ArgumentError(
                f"a number of {float(rest.abs().max()):g} to add up", expected="less than 2³¹"
            )
        digits = torch.zeros(*rest.shape[:-1], DIGITS, dtype=torch.long, device="cpu")
        for i in range(DIGITS):
            integers = rest.trunc()  # exact: a remainder has no more bits than the number
            digits[..., i] = integers.long().sum(dim=-1)
            rest = (rest - integers) * 2.0**BITS
            if not rest.any():
                break
        for i in range(DIGITS - 1, 0, -1):  # carry, so that every later digit is below 2³²
            digits[..., i - 1] += digits[..., i] >> BITS
            digits[..., i] &= (1 << BITS) - 1
        return cls(digits, is_number.sum(dim=-1))

    def plus(self, other: Total) -> Total:
        """Return the sum of both totals."""
        return Total(self.digits + other.digits, self.counts + other.counts)

    def mean(self) -> Float[Tensor, "*axes"]:
        """Return the mean in float64, rounded once; NaN where the count is 0."""
        digits = self.digits.reshape(-1, DIGITS).tolist()
        means = [*map(_quotient, digits, self.counts.flatten().tolist())]
        return torch.tensor(means, dtype=torch.float64, device="cpu").view(self.counts.shape)


def _quotient(digits: list[int], count: int) -> float:
    """Divide the sum by the count; Python rounds a quotient of two integers only once."""
    if not count:
        return float("nan")
    numerator = sum(digit << BITS * (DIGITS - 1 - i) for i, digit in enumerate(digits))
    return numerator / (count << BITS * (DIGITS - 1))
