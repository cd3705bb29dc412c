"""Sampling and search, without an import of torch: `--help` lists the fields and must be fast."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from heedful.configuration import Configuration, setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor


MIN_TEMPERATURE = 1e-30  # so that float32 never divides zero by zero


@dataclasses.dataclass(frozen=True)
class Sampling(Configuration):
    """How the next token is chosen; the steps apply in this order.

    >>> Sampling(temperature=0.0)  # greedy
    Sampling(repetition_penalty=1.0, temperature=0.0, top_k=0, top_p=1.0)
    """

    repetition_penalty: float = setting(
        1.0, "Divides the positive logits of tokens that have occurred; 1 is none.", low=1.0
    )
    temperature: float = setting(
        0.8, "Divides the logits: below 1 likely tokens get likelier; 0 is greedy.", low=0.0
    )
    top_k: int = setting(0, "Choose among the k likeliest tokens only; 0 is all.", low=0)
    top_p: float = setting(
        1.0, "Choose among the likeliest tokens that make up this probability.", low=0.0, high=1.0
    )

    def choose(
        self, logits: Tensor, before: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the next ids (B, 1), from logits (B, V) and the previous ids (B, N)."""
        if self.temperature == 0:  # no distribution is needed
            scores = penalised(logits.float(), before, self.repetition_penalty)
            return scores.argmax(-1, keepdim=True)
        return self.probabilities(logits, before).multinomial(1, generator=generator)

    def probabilities(self, logits: Tensor, before: Tensor) -> Tensor:
        """Return the sampling probabilities, from logits (B, V) and the previous ids (B, N).

        Sources: repetition penalty, Keskar et al. 2019 (arXiv:1909.05858); top-k, Fan et al. 2018
        (arXiv:1805.04833); top-p, Holtzman et al. 2020 (arXiv:1904.09751).
        """
        logits = penalised(logits.float(), before, self.repetition_penalty)
        if self.temperature == 0:
            return logits.new_zeros(logits.shape).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        logits = (logits - logits.amax(-1, keepdim=True)) / max(self.temperature, MIN_TEMPERATURE)
        if 0 < self.top_k < logits.shape[-1]:
            top = logits.topk(self.top_k)
            logits = logits.new_full(logits.shape, float("-inf")).scatter(
                -1, top.indices, top.values
            )
        probabilities = logits.softmax(-1)
        return nucleus(probabilities, self.top_p) if self.top_p < 1 else probabilities


def penalised(logits: Tensor, before: Tensor, penalty: float) -> Tensor:
    """Apply a repetition penalty to logits (B, V): lower those of ids (B, N), each once."""
    if penalty == 1:
        return logits
    old = logits.gather(-1, before)
    return logits.scatter(-1, before, (old / penalty).where(old > 0, old * penalty))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most probable tokens that reach `top_p` in sum, and renormalise."""
    ordered, order = probabilities.sort(-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    beyond[..., 0] = False
    top = ordered.masked_fill(beyond, 0.0)
    return probabilities.new_zeros(probabilities.shape).scatter(
        -1, order, top / top.sum(-1, keepdim=True)
    )


@dataclasses.dataclass(frozen=True)
class Search(Configuration):
    """The settings of greedy and beam search.

    >>> Search(beams=1)  # greedy
    Search(beams=1, length_penalty=0.6, longest=None)
    """

    beams: int = setting(
        4, "Unfinished targets that are kept at each step; 1 is greedy.", low=1, high=10_000
    )
    length_penalty: float = setting(
        0.6,
        "Exponent by which longer targets are favoured: 0 compares plain probabilities.",
        low=0.0,
        high=100.0,
    )
    longest: int | None = setting(
        None, "Maximal tokens of a target, its end included; default: the context.", low=1
    )

    def penalty(self, tokens: int) -> float:
        """Return the divisor of a target's log-probability; `tokens` includes the end.

        Source: Wu et al. 2016, *Google's neural machine translation system* (arXiv:1609.08144),
        equation 14, without the coverage penalty.
        """
        return ((5 + tokens) / 6) ** self.length_penalty
