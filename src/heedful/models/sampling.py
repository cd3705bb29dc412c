"""Settings of sampling and of beam search; no import of torch, so that `--help` is fast."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from heedful.configuration import Configuration, setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MIN_TEMPERATURE = 1e-30  # less could become 0 in float32, and 0 / 0 is NaN


@dataclasses.dataclass(frozen=True)
class Sampling(Configuration):
    """Settings for choosing the next token, applied in the order of the fields.

    >>> Sampling(temperature=0.0)  # greedy
    Sampling(repetition_penalty=1.0, temperature=0.0, top_k=0, top_p=1.0)
    """

    repetition_penalty: float = setting(
        1.0, "Lowers the logits of tokens that have occurred by this factor; 1: no effect.", low=1.0
    )
    temperature: float = setting(
        0.8, "Divides the logits: below 1, likely tokens get likelier; 0: greedy.", low=0.0
    )
    top_k: int = setting(0, "Choose among the k likeliest tokens only; 0: all.", low=0)
    top_p: float = setting(
        1.0, "Choose among the likeliest tokens with this total probability.", low=0.0, high=1.0
    )

    def choose(
        self, logits: Tensor, previous_ids: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the next ids (B, 1), from logits (B, V) and the previous ids (B, N)."""
        if self.temperature == 0:  # greedy: no distribution is needed
            return self._scores(logits, previous_ids).argmax(-1, keepdim=True)
        return self.probabilities(logits, previous_ids).multinomial(1, generator=generator)

    def probabilities(self, logits: Tensor, previous_ids: Tensor) -> Tensor:
        """Return the sampling probabilities, from logits (B, V) and the previous ids (B, N).

        Sources: repetition penalty, Keskar et al. 2019 (arXiv:1909.05858); top-k, Fan et al. 2018
        (arXiv:1805.04833); top-p, Holtzman et al. 2020 (arXiv:1904.09751).
        """
        logits = self._scores(logits, previous_ids)
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

    def _scores(self, logits: Tensor, previous_ids: Tensor) -> Tensor:
        """Check the logits, and apply the repetition penalty; a repeated id counts once."""
        from heedful.models.checks import check_logits

        logits, penalty = check_logits(logits), self.repetition_penalty
        if penalty == 1:
            return logits
        scores = logits.gather(-1, previous_ids)
        lowered = (scores / penalty).where(scores > 0, scores * penalty)
        return logits.scatter(-1, previous_ids, lowered)


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the most probable tokens, as few as reach the sum `top_p`, and renormalise."""
    ordered, order = probabilities.sort(-1, descending=True)
    is_excluded = ordered.cumsum(-1) - ordered >= top_p
    is_excluded[..., 0] = False
    top = ordered.masked_fill(is_excluded, 0.0)
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
        4, "Unfinished targets kept at each step; 1: greedy search.", low=1, high=10_000
    )
    length_penalty: float = setting(
        0.6,
        "Exponent of the length penalty, which favours longer targets; 0: none.",
        low=0.0,
        high=100.0,
    )
    longest: int | None = setting(
        None, "Maximum number of tokens of a target, with its end; default: the context.", low=1
    )

    def penalty(self, tokens: int) -> float:
        """Return the divisor of a target's log-probability; `tokens` counts the end, too.

        Source: Wu et al. 2016, *Google's neural machine translation system* (arXiv:1609.08144),
        equation 14, without the coverage penalty.
        """
        return ((5 + tokens) / 6) ** self.length_penalty
