"""The states of the generators that torch draws from by itself: the CPU's, and those of GPUs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RandomStates(NamedTuple):
    """The state of the CPU's generator, and of that of each GPU where one was used."""

    cpu: Tensor
    gpus: list[Tensor]

    @classmethod
    def now(cls) -> RandomStates:
        """As they are. A GPU that nobody used is not begun for it: its generator drew nothing."""
        is_used = torch.cuda.is_initialized()
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if is_used else [])

    def put_back(self) -> None:
        """Let torch draw the same again."""
        torch.set_rng_state(self.cpu)
        if self.gpus:
            torch.cuda.set_rng_state_all(self.gpus)
