"""Generation: choosing the next token, with a cache, and streaming text as whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from heedful.errors import ArgumentError, TextError
from heedful.models import GPT
from heedful.models.sampling import Sampling
from heedful.text import Tokenizer

__all__ = ["Reader", "Sampling", "TextStream", "beginning", "generate", "window_start"]


def generate(
    model: GPT,
    ids: Sequence[int],
    *,
    tokens: int,
    sampling: Sampling | None = None,
    samples: int = 1,
    seed: int | None = None,
    cache: bool = True,
    vocabulary: int | None = None,
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
        vocabulary: choose among so many ids from 0, the tokenizer's size; default all rows of the
            model's table, which may have more than there are tokens.

    Returns:
        an iterator over the new ids, (B,) on the CPU; each is computed when it is asked for.

    Raises:
        ArgumentError: an empty prompt.
    """
    if not len(ids):
        raise ArgumentError(
            "an empty prompt",
            expected="at least one token",
            remedy="give some text to continue, or begin from nothing with beginning(tokenizer)",
        )
    device = next(model.parameters()).device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    text = torch.tensor(list(ids), device=device).repeat(samples, 1)
    reader = Reader(model, samples, cached=cache, most=len(ids) + tokens)
    return _continued(reader, text, tokens, sampling or Sampling(), generator, vocabulary)


def _continued(
    reader: Reader,
    text: Tensor,
    tokens: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    vocabulary: int | None,
) -> Iterator[Tensor]:
    for _ in range(tokens):
        with torch.inference_mode():
            logits = reader.logits(text)[:, :vocabulary]
            chosen = sampling.choose(logits, text, generator)
            text = torch.cat([text, chosen], dim=1)
        yield chosen[:, 0].cpu()


def beginning(tokenizer: Tokenizer) -> list[int]:
    """What stands before a text that begins from nothing, where a model wants one token at least.

    What the tokenizer puts before any text; else the token that begins or ends a document, after
    which another begins; else a line break, or a space; else its first token.

    >>> from heedful.text import CharacterTokenizer
    >>> beginning(CharacterTokenizer("\\n ab")), beginning(CharacterTokenizer("ab"))
    ([0], [0])
    """
    if tokenizer.first:
        return list(tokenizer.first)
    for role in ("bos", "eos"):
        if role in tokenizer.special:
            return [tokenizer.special[role]]
    for blank in ("\n", " "):
        with suppress(TextError):  # characters may lack both
            if ids := tokenizer.encode(blank):
                return ids
    return [0]


class Reader:
    """Gives the logits after a text that grows, reading no more of it than it must.

    Args:
        model: as for `generate`.
        batch: B, texts that grow together.
        cached: keep keys and values.
        most: the tokens that a text will have; default as many as the model sees at once.
    """

    def __init__(
        self, model: GPT, batch: int, cached: bool = True, most: int | None = None
    ) -> None:
        self.model = model
        self.context_length = model.config.context_length
        # a Llama's whole context would be gigabytes of keys and values
        capacity = min(self.context_length, most or self.context_length)
        self.cache = model.new_cache(batch, capacity) if cached else None
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

    def cut(self, length: int, most: int) -> None:
        """Forget all tokens but the first ones, and make room for `most` in all.

        For a text that goes on in another way, and has not yet slid.
        """
        if self.cache is not None:
            self.cache.cut(length)
            self.cache.widen(min(most, self.context_length))


def window_start(length: int, context_length: int) -> int:
    """The first token that is still seen of `length`: 0, then half a context further each time.

    >>> [window_start(length, context_length=4) for length in range(1, 10)]
    [0, 0, 0, 0, 2, 2, 4, 4, 6]
    """
    hop = max(1, context_length // 2)
    return max(0, -(-(length - context_length) // hop)) * hop


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
