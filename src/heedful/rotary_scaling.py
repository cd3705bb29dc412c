"""Rotary positions slowed, so that a model reads further than it was first trained to."""

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
    """Which rotary frequencies are divided by a factor.

    "linear" divides all: Chen et al. 2023, *Extending context window of large language models via
    position interpolation* (arXiv:2306.15595). "llama3" divides the slow ones, whose waves do not
    fit into the context that the model was first trained on, leaves the fast ones, and goes evenly
    from the one to the other between: Llama 3.1's own code, Grattafiori et al. 2024
    (arXiv:2407.21783).

    >>> import torch
    >>> scaling = RotaryScaling(kind="linear", factor=4.0)
    >>> scaling.scaled(torch.tensor([1.0, 0.5]))
    tensor([0.2500, 0.1250])
    """

    kind: str = setting(
        dataclasses.MISSING, "Which frequencies are divided.", choices=("linear", "llama3")
    )
    factor: float = setting(dataclasses.MISSING, "What they are divided by.", low=1.0)
    original_context: int | None = setting(
        None, "Of llama3: the tokens that the model was first trained on.", low=1
    )
    low_frequency: float = setting(
        1.0, "Of llama3: waves are slow that fit into that context fewer times.", low=0.0
    )
    high_frequency: float = setting(
        4.0, "Of llama3: waves are fast that fit into that context more times.", low=0.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "llama3":
            return
        if self.original_context is None:
            raise ArgumentError(
                "rotary scaling of the kind llama3 without original_context",
                expected="the tokens that the model was first trained on",
            )
        if self.high_frequency <= self.low_frequency:
            raise ArgumentError(
                f"high_frequency = {self.high_frequency}",
                expected=f"more than low_frequency = {self.low_frequency}",
            )

    def scaled(self, frequencies: Tensor) -> Tensor:
        """Frequencies in radians a token, each as slow as it shall be."""
        slow = frequencies / self.factor
        if self.original_context is None or self.kind == "linear":
            return slow
        times = self.original_context * frequencies / (2 * math.pi)
        fast = (times - self.low_frequency) / (self.high_frequency - self.low_frequency)
        return slow.lerp(frequencies, fast.clamp(0, 1))
