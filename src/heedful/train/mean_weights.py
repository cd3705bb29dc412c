"""A running mean of the weights, which moves less than they do from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from heedful.train.shards import is_sharded, own


class MeanWeights:
    """The exponential mean of the weights over the steps, kept in the optimizer's state.

    After step n, counted from 1, the mean keeps `min(decay, n / (n + 9))` of itself, so the weights
    at the beginning weigh little. Sources: Polyak and Juditsky 1992; Morales-Brotons et
    al. 2024 (arXiv:2411.18704).

    Args:
        optimizer: its state has the means, so that a checkpoint has them too.
        parameters: of the model.
        decay: 0 keeps no mean, and then nothing is done.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> mean = MeanWeights(torch.optim.SGD([weight]), [weight], decay=0.9)
    >>> mean.update(1)
    >>> _ = weight.data.fill_(2.0)
    >>> mean.update(2)
    >>> with mean.in_use():
    ...     print(f"{weight.item():.3f}")
    1.818
    >>> weight.item()
    2.0
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], decay: float
    ) -> None:
        self.optimizer, self.parameters, self.decay = optimizer, parameters, decay
        self._is_in_use = False

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, whose number counts from 1."""
        if not self.decay:
            return
        new = 1 - min(self.decay, step / (step + 9))
        for parameter in self.parameters:
            state = self.optimizer.state[parameter]
            if "average" in state:
                own(state["average"]).lerp_(own(parameter), new)
            else:
                state["average"] = parameter.detach().clone()

    def restored(self) -> None:
        """Drop the means of a checkpoint, once it is restored, where none is kept any more."""
        for parameter in () if self.decay else self.parameters:
            self.optimizer.state[parameter].pop("average", None)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the parameters have the mean's values."""
        if self._is_in_use:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """In place where weights are cut among processes: torch knows those by where they lie."""
        self._is_in_use = not self._is_in_use
        for parameter in self.parameters:
            mean = self.optimizer.state[parameter].get("average")
            if mean is None:
                continue
            if is_sharded(parameter):
                kept = own(parameter).clone()
                own(parameter).copy_(own(mean))
                own(mean).copy_(kept)
            else:
                parameter.data, mean.data = mean.data, parameter.data
