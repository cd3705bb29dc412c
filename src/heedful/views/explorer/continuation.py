"""Token-by-token continuation of a text by a GPT, an encoder–decoder or a transformers model.

A cache stores keys and values, so the model reads each token once. When the user replaces a token,
the cache is cut to the tokens before that token.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.generate import Reader, beginning
from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq
from heedful.loaded.loaded_model import LoadedModel
from heedful.loaded.transformers_models import LoadedTransformers, end_ids
from heedful.recording import Recording
from heedful.recording.live_generation import LiveGeneration
from heedful.views.explorer.text import Text


class Continuation(ABC):
    """A model that continues a text, with the cache of the text so far.

    model: the model to record. ids: the first token ids, of the prompt or of an encoder–decoder's
    target. ends: ids that end a text. size: the vocabulary size. context_length: None if unlimited.
    """

    model: nn.Module
    ids: list[int]
    ends: frozenset[int]
    size: int
    context_length: int | None

    @abstractmethod
    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits (1, V) after ids (1, T), which extend the ids of the previous call."""

    @abstractmethod
    def cut(self, length: int, capacity: int) -> bool:
        """Cut the cache to `length` tokens, with room for `capacity`; return False if cleared."""

    def name_tokens(self, recording: Recording, pieces: list[str]) -> None:
        """Set the token names of a recording of the text."""
        recording.tokens = [pieces]


def continuation(loaded: LoadedModel, prompt: str) -> Continuation:
    """Return the continuation of a prompt, which may be empty.

    Raises:
        ArgumentError: a model that continues no text, or that cannot start from an empty prompt.
        TextError: a prompt that is longer than the context.
    """
    if isinstance(loaded, LoadedGPT):
        return _GPTContinuation(loaded, prompt)
    if isinstance(loaded, LoadedSeq2Seq):
        return _Seq2SeqContinuation(loaded, prompt)
    if isinstance(loaded, LoadedTransformers) and loaded.writer is not None:
        return _TransformersContinuation(loaded, loaded.writer, prompt)
    is_masked = isinstance(loaded, LoadedBert) or "Masked" in type(loaded.model).__name__
    raise ArgumentError(
        f"{loaded.directory.name} is a {type(loaded.model).__name__}, which cannot continue a text",
        expected="a model that generates text token by token",
        remedy="fill gaps in a text with `heedful fill`" if is_masked else "pass a text to look at",
    )


class _GPTContinuation(Continuation):
    def __init__(self, loaded: LoadedGPT, prompt: str) -> None:
        self.model, self._opened = loaded.model, loaded
        tokenizer = loaded.tokenizer
        read = loaded.read(prompt).inputs["ids"][0].tolist() if prompt else None
        self.ids = read or beginning(tokenizer)
        self.ends = loaded.ends
        self.size, self.context_length = tokenizer.size, loaded.model.config.context_length
        self._reader = Reader(loaded.model, 1, max_length=len(self.ids))

    def logits(self, ids: Tensor) -> Tensor:
        return self._reader.logits(ids)

    def cut(self, length: int, capacity: int) -> bool:
        self._reader.cut(length, capacity)
        return True


class _Seq2SeqContinuation(Continuation):
    """The prompt is the source; the generated text is the target, after its begin token."""

    def __init__(self, loaded: LoadedSeq2Seq, prompt: str) -> None:
        self.model, self._seq2seq = loaded.model, loaded.model
        config = loaded.model.config
        source, target = loaded.source_and_target(prompt, target="")
        self.ids, self._source = target[0].tolist(), source
        self._source_tokens = loaded.pieces(source[0].tolist())
        self.ends, self.context_length = frozenset({config.end}), config.context_length
        self.size, self._begin = config.vocabulary, config.begin
        self._cache = loaded.model.new_cache(1, source.shape[1])
        self._memory: Tensor | None = None

    def logits(self, ids: Tensor) -> Tensor:
        if self._memory is None:
            self._memory = self._seq2seq.encode(self._source)
        unread = ids[:, self._cache.target.length :]
        states = self._seq2seq.decoder_states(unread, self._memory, cache=self._cache)
        logits = self._seq2seq.head(states[-1][:, -1])
        logits[:, self._begin] = -torch.inf  # the begin token is never generated
        return logits

    def cut(self, length: int, capacity: int) -> bool:
        self._cache.target.cut(length)
        return True

    def name_tokens(self, recording: Recording, pieces: list[str]) -> None:
        recording.tokens, recording.target_tokens = [self._source_tokens], [pieces]


class _TransformersContinuation(Continuation):
    def __init__(self, loaded: LoadedTransformers, writer: nn.Module, prompt: str) -> None:
        self.model, self._writer, self._opened = loaded.model, writer, loaded
        self.ids = _prompt_ids(loaded, prompt)
        self.ends = end_ids(writer)
        self.size, self.context_length = len(loaded.tokenizer), loaded.context_length
        parameters = inspect.signature(writer.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._cache: Any = None
        self._length = 0

    def logits(self, ids: Tensor) -> Tensor:
        with self._opened.library_errors():
            output = self._writer(
                ids[:, self._length :], past_key_values=self._cache, use_cache=True, **self._options
            )
        self._cache, self._length = output.past_key_values, ids.shape[1]
        return output.logits[:, -1]

    def cut(self, length: int, capacity: int) -> bool:
        surplus = self._length - length
        if not surplus:
            return True
        try:
            self._cache.crop(-surplus)
            self._length = length
        except RuntimeError:  # a sliding window has dropped keys that are needed
            self._cache, self._length = None, 0
        return bool(self._length)


def _prompt_ids(loaded: LoadedTransformers, prompt: str) -> list[int]:
    """Return the ids of a prompt; if it is empty, the begin token's id, or else the end token's."""
    if prompt:
        return loaded.read(prompt).inputs["input_ids"][0].tolist()
    tokenizer = loaded.tokenizer
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return [token]
    raise ArgumentError("an empty prompt", expected="some text to continue")


@dataclass
class LiveText:
    """A text that a model generates, and its calls at each length that it has had.

    name: the title. prompt_text: the prompt. loaded: the model. continuation: the model with its
    cache. prompt: the number of prompt tokens. growing: the recorded calls. ids: the token ids.
    pieces: the token names that were computed so far. likely: for each token after the prompt, and
    for the next token, the likeliest tokens and their probabilities before temperature and filters.
    chances: the probabilities of the tokens after the prompt. logits: (1, V), for the next token.
    number: the index of the recording in the catalogue.
    """

    name: str
    prompt_text: str
    loaded: LoadedModel
    continuation: Continuation
    prompt: int
    growing: LiveGeneration = field(default_factory=LiveGeneration)
    ids: list[int] = field(default_factory=list)
    likely: list[tuple[list[int], list[float]]] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    logits: Tensor = field(init=False)
    number: int = 0
    pieces: list[str] = field(default_factory=list)

    @property
    def missed(self) -> dict[str, str]:
        """The modules whose attention could not be recorded, and the reason for each."""
        return self.growing.missed

    def recording(self, tokens: int) -> Recording:
        """Return a recording of the first `tokens` tokens, as if recorded in one pass."""
        self.pieces += self.loaded.pieces(self.ids[len(self.pieces) :])
        recording = self.growing.recording(tokens)
        self.continuation.name_tokens(recording, self.pieces[:tokens])
        return recording

    def text(self, tokens: int) -> Text:
        """Return the first `tokens` tokens as a text with its calls.

        Raises:
            ArgumentError: `tokens` is less than 1, or more than the tokens so far.
        """
        recording = self.recording(tokens)
        return Text("the text", list(recording), prompt=self.prompt, sides=recording.sides)
