"""How ids are chosen from logits, without torch, so that the help of a command has the fields."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from heedful.configuration import Configuration, setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor


COLDEST = 1e-30  # float32 divides zeros by it, and not by zero


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
        """The next ids (B, 1), from logits (B, V) and the ids (B, N) before."""
        if self.temperature == 0:  # no need to make and draw from a table of one choice
            lowered = penalised(logits.float(), before, self.repetition_penalty)
            return lowered.argmax(-1, keepdim=True)
        return self.probabilities(logits, before).multinomial(1, generator=generator)

    def probabilities(self, logits: Tensor, before: Tensor) -> Tensor:
        """From logits (B, V) and the ids (B, N) before, the probabilities to draw from.

        Sources: repetition penalty, Keskar et al. 2019 (arXiv:1909.05858); top-k, Fan et al. 2018
        (arXiv:1805.04833); top-p, Holtzman et al. 2020 (arXiv:1904.09751).
        """
        logits = penalised(logits.float(), before, self.repetition_penalty)
        if self.temperature == 0:
            return logits.new_zeros(logits.shape).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        logits = (logits - logits.amax(-1, keepdim=True)) / max(self.temperature, COLDEST)
        if 0 < self.top_k < logits.shape[-1]:
            top = logits.topk(self.top_k)
            logits = logits.new_full(logits.shape, float("-inf")).scatter(
                -1, top.indices, top.values
            )
        probabilities = logits.softmax(-1)
        return nucleus(probabilities, self.top_p) if self.top_p < 1 else probabilities


def penalised(logits: Tensor, before: Tensor, penalty: float) -> Tensor:
    """Logits (B, V) with those of the ids (B, N) lowered, each once."""
    if penalty == 1:
        return logits
    seen = logits.gather(-1, before)
    return logits.scatter(-1, before, (seen / penalty).where(seen > 0, seen * penalty))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Zero what lies beyond the likeliest tokens that reach `top_p`; at least one is kept."""
    ordered, order = probabilities.sort(-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    beyond[..., 0] = False
    kept = ordered.masked_fill(beyond, 0.0)
    return probabilities.new_zeros(probabilities.shape).scatter(
        -1, order, kept / kept.sum(-1, keepdim=True)
    )


@dataclasses.dataclass(frozen=True)
class Search(Configuration):
    """How the likeliest target is looked for.

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
        None, "Tokens of a target at most, its end with them; default: the context.", low=1
    )

    def penalty(self, tokens: int) -> float:
        """What the log-probability of a target is divided by; its end counts as a token.

        Source: Wu et al. 2016, *Google's neural machine translation system* (arXiv:1609.08144),
        equation 14, without the penalty of coverage.
        """
        return ((5 + tokens) / 6) ** self.length_penalty
