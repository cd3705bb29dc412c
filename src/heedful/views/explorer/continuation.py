"""What continues a text, token by token: one of our GPTs, an encoder–decoder, or transformers'.

Each reads no token twice: keys and values of those before are kept, and cut where another token
is chosen.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.generate import Reader, beginning
from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq
from heedful.loaded.loaded_model import LoadedModel
from heedful.loaded.transformers_models import LoadedTransformers
from heedful.recording import Recording
from heedful.recording.live_generation import Growing
from heedful.views.explorer.text import Text


class Continued(ABC):
    """A text that a model goes on with.

    model: what is recorded. ids: what the text begins with. ends: ids that end it. size: of the
    vocabulary that is chosen from. context_length: the most tokens it may have; None: no end.
    """

    model: nn.Module
    ids: list[int]
    ends: frozenset[int]
    size: int
    context_length: int | None

    @abstractmethod
    def logits(self, ids: Tensor) -> Tensor:
        """(1, V), after ids (1, T) that begin with those of the call before."""

    @abstractmethod
    def cut(self, length: int, most: int) -> bool:
        """Forget all but the first tokens; there will be `most`. Whether these were kept."""

    @abstractmethod
    def name(self, recording: Recording, pieces: list[str]) -> None:
        """Give the tokens of a recording of the text their names."""


def continued(opened: LoadedModel, prompt: str) -> Continued:
    """What goes on with a prompt; an empty one begins from nothing.

    Raises:
        ArgumentError: a model that continues no text.
        TextError: a prompt that is longer than the context.
    """
    if isinstance(opened, LoadedGPT):
        return _OfGPT(opened, prompt)
    if isinstance(opened, LoadedSeq2Seq):
        return _OfSeq2Seq(opened, prompt)
    if isinstance(opened, LoadedTransformers) and opened.writer is not None:
        return _OfTransformers(opened, opened.writer, prompt)
    guesses = isinstance(opened, LoadedBert) or "Masked" in type(opened.model).__name__
    raise ArgumentError(
        f"{opened.directory.name} holds a {type(opened.model).__name__}, which continues no text",
        expected="a model that writes one token after the other",
        remedy="fill its gaps with `heedful fill`" if guesses else "look at it with a text",
    )


class _OfGPT(Continued):
    def __init__(self, opened: LoadedGPT, prompt: str) -> None:
        self.model, self._opened = opened.model, opened
        tokenizer = opened.tokenizer
        if prompt:
            self.ids = opened.read(prompt).inputs["ids"][0].tolist()
        else:
            self.ids = beginning(tokenizer)
        end = tokenizer.special.get("eos")
        self.ends = frozenset() if end is None else frozenset({end})
        self.size, self.context_length = tokenizer.size, opened.model.config.context_length
        self._reader = Reader(opened.model, 1, most=len(self.ids))

    def logits(self, ids: Tensor) -> Tensor:
        return self._reader.logits(ids)

    def cut(self, length: int, most: int) -> bool:
        self._reader.cut(length, most)
        return True

    def name(self, recording: Recording, pieces: list[str]) -> None:
        recording.tokens = [pieces]


class _OfSeq2Seq(Continued):
    """The text that grows is the target, after the sign of its begin."""

    def __init__(self, opened: LoadedSeq2Seq, prompt: str) -> None:
        self.model, self._seq2seq = opened.model, opened.model
        config = opened.model.config
        source, target = opened.rows(prompt, target="")
        self.ids, self._source = target[0].tolist(), source
        self._read = opened.pieces(source[0].tolist())
        self.ends, self.context_length = frozenset({config.end}), config.context_length
        self.size, self._begin = config.vocabulary, config.begin
        self._cache = opened.model.new_cache(1, source.shape[1])
        self._memory: Tensor | None = None

    def logits(self, ids: Tensor) -> Tensor:
        if self._memory is None:
            self._memory = self._seq2seq.encode(self._source)
        unread = ids[:, self._cache.target.length :]
        states = self._seq2seq.decoder_states(unread, self._memory, cache=self._cache)
        logits = self._seq2seq.head(states[-1][:, -1])
        logits[:, self._begin] = -torch.inf  # a target never begins again
        return logits

    def cut(self, length: int, most: int) -> bool:
        self._cache.target.cut(length)
        return True

    def name(self, recording: Recording, pieces: list[str]) -> None:
        recording.tokens, recording.target_tokens = [self._read], [pieces]


class _OfTransformers(Continued):
    def __init__(self, opened: LoadedTransformers, writer: nn.Module, prompt: str) -> None:
        self.model, self._writer, self._opened = opened.model, writer, opened
        self.ids = _begun(opened, prompt)
        self.ends = _ends(writer)
        self.size, self.context_length = len(opened.tokenizer), opened.context_length
        takes = inspect.signature(writer.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._cache: Any = None
        self._length = 0

    def logits(self, ids: Tensor) -> Tensor:
        with self._opened.reporting():
            found = self._writer(
                ids[:, self._length :],
                past_key_values=self._cache,
                use_cache=True,
                **self._options,
            )
        self._cache, self._length = found.past_key_values, ids.shape[1]
        return found.logits[:, -1]

    def cut(self, length: int, most: int) -> bool:
        too_many = self._length - length
        if not too_many:
            return True
        try:
            self._cache.crop(-too_many)
            self._length = length
        except RuntimeError:  # a window has passed over what it would need again
            self._cache, self._length = None, 0
        return bool(self._length)

    def name(self, recording: Recording, pieces: list[str]) -> None:
        recording.tokens = [pieces]


def _begun(opened: LoadedTransformers, prompt: str) -> list[int]:
    """The ids of a prompt; of none, that of the token that begins or ends a text."""
    if prompt:
        return opened.read(prompt).inputs["input_ids"][0].tolist()
    tokenizer = opened.tokenizer
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return [token]
    raise ArgumentError("an empty prompt", expected="some text to continue")


def _ends(writer: Any) -> frozenset[int]:
    end = writer.generation_config.eos_token_id
    return frozenset(() if end is None else end if isinstance(end, Sequence) else (end,))


@dataclass
class GrowingText:
    """A text as far as it is written, with its calls at any length that it has had.

    name: of its prompt, which is `said` in full. opened: the model, which names the tokens.
    continued: what goes on with the text. prompt: how many tokens it began with. likely: for each
    token after the prompt, and for the next one, the likeliest with their probabilities, before
    temperature and what else chooses. chances: of the tokens after the prompt. logits: (1, V), of
    the next. number: of the recording.
    """

    name: str
    said: str
    opened: LoadedModel
    continued: Continued
    prompt: int
    growing: Growing = field(default_factory=Growing)
    ids: list[int] = field(default_factory=list)
    likely: list[tuple[list[int], list[float]]] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    logits: Tensor = field(
        default_factory=lambda: torch.empty(1, 0, dtype=torch.float32, device="cpu")
    )
    number: int = 0
    pieces: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """How many there are by now."""
        return self.growing.tokens

    @property
    def missed(self) -> dict[str, str]:
        """Modules whose attention was not understood, and why."""
        return self.growing.missed

    def is_begun_with(self, prompt: str) -> bool:
        """Whether it is this prompt and nothing else."""
        return self.said == prompt and len(self.ids) == self.prompt

    def recording(self, tokens: int) -> Recording:
        """The first tokens as a recording of one pass."""
        self.pieces += self.opened.pieces(self.ids[len(self.pieces) :])
        recording = self.growing.recording(tokens)
        self.continued.name(recording, self.pieces[:tokens])
        return recording

    def at(self, tokens: int) -> Text:
        """The calls on the first tokens.

        Raises:
            ArgumentError: more than there are, or none.
        """
        recording = self.recording(tokens)
        return Text("the text", list(recording), prompt=self.prompt, sides=recording.sides)
