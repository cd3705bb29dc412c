"""Scaling of rotary frequencies, to extend a context beyond the length used in training."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from heedful.configuration import Configuration, setting
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RotaryScaling(Configuration):
    """The scaling of rotary frequencies: which are divided, and by which factor.

    "linear" divides all frequencies: Chen et al. 2023, *Extending context window of large language
    models via position interpolation* (arXiv:2306.15595). "llama3" divides low frequencies (by
    default, those with a wavelength longer than the original context), keeps high frequencies, and
    interpolates linearly in between: Llama 3.1, Grattafiori et al. 2024 (arXiv:2407.21783).

    >>> import torch
    >>> scaling = RotaryScaling(kind="linear", factor=4.0)
    >>> scaling.scale(torch.tensor([1.0, 0.5]))
    tensor([0.2500, 0.1250])
    """

    kind: str = setting(
        dataclasses.MISSING, "Which frequencies are divided.", choices=("linear", "llama3")
    )
    factor: float = setting(dataclasses.MISSING, "The divisor of the frequencies.", low=1.0)
    original_context: int | None = setting(
        None, "For llama3: the context length before the extension, in tokens.", low=1
    )
    low_frequency: float = setting(
        1.0, "For llama3: a frequency is low up to this many periods per original context.", low=0.0
    )
    high_frequency: float = setting(
        4.0, "For llama3: a frequency is high from this many periods per original context.", low=0.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "llama3" and self.original_context is None:
            raise ArgumentError(
                "rotary scaling of the kind llama3 without original_context",
                expected="the context length before the extension, in tokens",
            )

    def scale(self, frequencies: Tensor) -> Tensor:
        """Return the scaled frequencies, in radians per token."""
        divided = frequencies / self.factor
        if self.original_context is None or self.kind == "linear":
            return divided
        periods = self.original_context * frequencies / (2 * math.pi)
        share = (periods - self.low_frequency) / (self.high_frequency - self.low_frequency)
        return divided.lerp(frequencies, share.clamp(0, 1))
