"""Generation: choosing the next token, with a cache, and streaming text as whole characters.

It brings a model and a tokenizer together, and knows of the tokenizer only what it can do.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from heedful.configuration import Configuration, setting
from heedful.errors import ArgumentError
from heedful.models import GPT


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
        0.8, "Divides the logits: below 1 bolder choices get likelier; 0 is greedy.", low=0.0
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
        return torch.multinomial(self.probabilities(logits, before), 1, generator=generator)

    def probabilities(self, logits: Tensor, before: Tensor) -> Tensor:
        """From logits (B, V) and the ids (B, N) before, the probabilities to draw from.

        Sources: repetition penalty, Keskar et al. 2019 (arXiv:1909.05858); top-k, Fan et al. 2018
        (arXiv:1805.04833); top-p, Holtzman et al. 2020 (arXiv:1904.09751).
        """
        logits = penalised(logits.float(), before, self.repetition_penalty)
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            top = logits.topk(self.top_k)
            logits = torch.full_like(logits, float("-inf")).scatter(-1, top.indices, top.values)
        probabilities = logits.softmax(-1)
        return nucleus(probabilities, self.top_p) if self.top_p < 1 else probabilities


def penalised(logits: Tensor, before: Tensor, penalty: float) -> Tensor:
    """Logits (B, V) with those of the ids (B, N) lowered, each once."""
    if penalty == 1:
        return logits
    seen = logits.gather(-1, before)
    return logits.scatter(-1, before, torch.where(seen > 0, seen / penalty, seen * penalty))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Zero what lies beyond the likeliest tokens that reach `top_p`; at least one is kept."""
    ordered, order = probabilities.sort(-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    beyond[..., 0] = False
    kept = ordered.masked_fill(beyond, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, order, kept / kept.sum(-1, keepdim=True))


def generate(
    model: GPT,
    ids: Sequence[int],
    *,
    tokens: int,
    sampling: Sampling | None = None,
    samples: int = 1,
    seed: int | None = None,
    cache: bool = True,
) -> Iterator[Tensor]:
    """Continue a prompt, one token at a time.

    Past the model's context it slides: when the context is full, the older half is forgotten
    and the newer half read again, so that positions stay those that the model was trained on.
    With the cache and without it the same tokens are seen.

    Args:
        model: in evaluation mode.
        ids: the prompt's ids, at least one.
        tokens: how many to add.
        sampling: how to choose; default `Sampling()`.
        samples: B, continuations made at once.
        seed: for the draws; None takes torch's own state.
        cache: keep keys and values, instead of reading everything again for each token.

    Yields:
        the new ids, (B,), on the CPU.

    Raises:
        ArgumentError: an empty prompt.
    """
    if not len(ids):
        raise ArgumentError(
            "an empty prompt", expected="at least one token", remedy="give some text to continue"
        )
    sampling = sampling or Sampling()
    device = next(model.parameters()).device
    generator = None
    if seed is not None:
        generator = torch.Generator(device).manual_seed(seed)
    text = torch.tensor(list(ids), device=device).repeat(samples, 1)
    reader = Reader(model, samples, cached=cache)
    for _ in range(tokens):
        with torch.inference_mode():
            chosen = sampling.choose(reader.logits(text), text, generator)
            text = torch.cat([text, chosen], dim=1)
        yield chosen[:, 0].cpu()


class Reader:
    """Gives the logits after a text that grows, reading no more of it than it must.

    Args:
        model: as for `generate`.
        batch: B, texts that grow together.
        cached: keep keys and values.
    """

    def __init__(self, model: GPT, batch: int, cached: bool = True) -> None:
        self.model = model
        self.context_length = model.config.context_length
        self.cache = model.new_cache(batch) if cached else None
        self.start = 0

    def logits(self, ids: Tensor) -> Tensor:
        """The logits (B, V) after ids (B, N), which begin with the ids of the call before."""
        start = window_start(ids.shape[1], self.context_length)
        if self.cache is None:
            unread = ids[:, start:]
        else:
            if start != self.start:
                self.cache.clear()
            unread = ids[:, start + self.cache.length :]
        self.start = start
        states = self.model.hidden_states(unread, cache=self.cache)
        return self.model.head(states[-1][:, -1])


def window_start(length: int, context_length: int) -> int:
    """The first token that is still seen of `length`: 0, then half a context further each time.

    >>> [window_start(length, context_length=4) for length in range(1, 10)]
    [0, 0, 0, 0, 2, 2, 4, 4, 6]
    """
    hop = max(1, context_length // 2)
    return max(0, -(-(length - context_length) // hop)) * hop


class Tokenizer(Protocol):
    """What streaming asks of a tokenizer."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token."""


class TextStream:
    """Turns ids into text as they come: whole characters only, and nothing after a stop text.

    A character whose bytes are spread over tokens is held back until it is whole; so is text
    that may turn out to be the beginning of a stop text.

    >>> class Bytes:
    ...     def token_bytes(self, token): return bytes([token])
    >>> stream = TextStream(Bytes(), stop=["!?"])
    >>> [stream.push(byte) for byte in "né!?x".encode()]
    ['n', '', 'é', '', '', '']
    >>> stream.stopped
    True
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that can be shown now that this token has come."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(self._tokenizer.token_bytes(token))
        return self._release(ending=False)

    def close(self) -> str:
        """What is left to show when no more tokens come."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(ending=True)

    def _release(self, ending: bool) -> str:
        found = [at for text in self._stop if (at := self._held.find(text)) >= 0]
        if found:
            self.stopped = True
            return self._held[: min(found)]
        keep = 0 if ending else max((_overlap(self._held, text) for text in self._stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may be the beginning of the stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
