"""Text generation with a key/value cache, and decoding of generated tokens as a stream of text."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterator, Sequence
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

    When the text exceeds the model's context, the older half of the context is dropped. The newer
    half is read again from position 0, because the model was not trained on larger positions. The
    model reads the same tokens with and without the cache.

    Args:
        model: a GPT in evaluation mode.
        ids: the prompt's ids, at least one.
        tokens: the number of tokens to generate.
        sampling: how to choose a token; default `Sampling()`.
        samples: B, the number of continuations to generate at once.
        seed: the seed of the random draws; None uses torch's global generator.
        cache: store keys and values; False reads the whole text again for each token.
        vocabulary: choose among the first `vocabulary` ids, such as the tokenizer's size; default
            all rows of the model's embedding table, which may have rows without a token.

    Returns:
        an iterator over the new ids, (B,) each, on the CPU, which computes them on request.

    Raises:
        ArgumentError: the prompt is empty.
    """
    if not len(ids):
        raise ArgumentError(
            "an empty prompt",
            expected="at least one token",
            remedy="pass some text to continue, or start without a prompt: beginning(tokenizer)",
        )
    device = next(model.parameters()).device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    text = torch.tensor(list(ids), device=device).repeat(samples, 1)
    reader = Reader(model, samples, cached=cache, max_length=len(ids) + tokens)
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
    """Return the ids from which to generate without a prompt; a model needs at least one token.

    Use the first of these that exists: the tokens that the tokenizer puts before every text, the
    token that begins a document, the token that ends one, a line break, a space, the id 0.

    >>> from heedful.text import CharacterTokenizer
    >>> beginning(CharacterTokenizer("\\n ab")), beginning(CharacterTokenizer("ab"))
    ([0], [0])
    """
    if tokenizer.prefix_ids:
        return list(tokenizer.prefix_ids)
    for role in ("bos", "eos"):
        if role in tokenizer.special:
            return [tokenizer.special[role]]
    for blank in ("\n", " "):
        with suppress(TextError):  # a character tokenizer may have neither
            if ids := tokenizer.encode(blank):
                return ids
    return [0]


class Reader:
    """Computes the next-token logits of growing texts; the model reads only the new tokens.

    Args:
        model: as in `generate`.
        batch: B, the number of texts.
        cached: store keys and values; False reads all tokens each time.
        max_length: the maximum length of a text; default the model's context.
    """

    def __init__(
        self, model: GPT, batch: int, cached: bool = True, max_length: int | None = None
    ) -> None:
        self.model = model
        self.context_length = model.config.context_length
        # a cache for a Llama's full context would need gigabytes
        capacity = min(self.context_length, max_length or self.context_length)
        self.cache = model.new_cache(batch, capacity) if cached else None
        self.start = 0

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits (B, V) after ids (B, N); they must extend the ids of the last call."""
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

    def cut(self, length: int, max_length: int) -> None:
        """Keep only the first `length` tokens in the cache; make room for `max_length` tokens.

        The next ids may then continue differently. The text must not have exceeded the context.
        """
        if self.cache is not None:
            self.cache.cut(length)
            self.cache.grow(min(max_length, self.context_length))


def window_start(length: int, context_length: int) -> int:
    """Return the index of the first token that the model still reads in a text of `length` tokens.

    It is 0 until the context is full, and then moves by half a context at a time.

    >>> [window_start(length, context_length=4) for length in range(1, 10)]
    [0, 0, 0, 0, 2, 2, 4, 4, 6]
    """
    hop = max(1, context_length // 2)
    return max(0, -(-(length - context_length) // hop)) * hop


class TextStream:
    """Decodes a stream of ids into text, up to the first stop text or id of `ends`.

    Text is returned as soon as its characters are complete (the bytes of a character may be spread
    over tokens) and it cannot be the start of a stop text.

    >>> class Bytes:
    ...     def token_bytes(self, token): return bytes([token])
    >>> stream = TextStream(Bytes(), stop=["!?"])
    >>> [stream.push(byte) for byte in "né!?x".encode()]
    ['n', '', 'é', '', '', '']
    >>> stream.stopped
    True
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), ends: Collection[int] = ()
    ) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._stop = [text for text in stop if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token, and return the text that can be released now."""
        if self.stopped:
            return ""
        if token in self._ends:
            text = self.close()
            self.stopped = True
            return text
        self._pending += self._decoder.decode(self._tokenizer.token_bytes(token))
        return self._release(ending=False)

    def close(self) -> str:
        """End the stream, and return the remaining text."""
        if self.stopped:
            return ""
        self._pending += self._decoder.decode(b"", final=True)
        return self._release(ending=True)

    def _release(self, ending: bool) -> str:
        stops = [start for text in self._stop if (start := self._pending.find(text)) >= 0]
        if stops:
            self.stopped = True
            return self._pending[: min(stops)]
        overlaps = (_overlap(self._pending, text) for text in self._stop)
        cut = len(self._pending) - (0 if ending else max(overlaps, default=0))
        released, self._pending = self._pending[:cut], self._pending[cut:]
        return released


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
