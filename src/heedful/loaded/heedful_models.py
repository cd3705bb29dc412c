"""heedful's own models with their tokenizers, and how each reads a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError, TextError
from heedful.loaded.loaded_model import LoadedModel, ModelInputs
from heedful.loaded.truncation import check_length, check_not_empty, refuse_second, room_for_text
from heedful.models import GPT, Bert, Seq2Seq
from heedful.models.beam_search import translate
from heedful.text import Inputs, RobertaTokenizer, Tokenizer, WordPieceTokenizer
from heedful.text.library_tokenizer import Span, split_ids
from heedful.text.word_vectors import WordVectors

BEGIN, END = "▶", "■"  # labels of the begin token of a target, and of the end token of both sides


class Positions(NamedTuple):
    """A model's position encoding: its kind, and its table with a row for each position.

    For rotary positions, the table holds the cosines of the angles.
    """

    kind: str
    table: Tensor


@dataclass(frozen=True)
class LoadedHeedful(LoadedModel):
    """One of heedful's own models with its tokenizer."""

    model: Any
    description: ClassVar[str] = "a model of `heedful train`, a GPT-2, a BERT or a Llama"
    purpose: ClassVar[str]  # the command for such a model, as advice in errors

    @property
    def positions(self) -> Positions:
        """The model's position encoding."""
        default = "sinusoidal" if isinstance(self.model, Seq2Seq) else "learned"
        kind = getattr(self.model.config, "positions", default)
        return Positions(kind, self.model.cosines if kind == "rotary" else self.model.positions)

    @property
    def context_length(self) -> int:
        """The most tokens that the model reads."""
        return self.model.config.context_length

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each id; an id without a token has its number as label."""
        size = self.tokenizer.size
        return [self.tokenizer.pieces([id])[0] if id < size else f"#{id}" for id in ids]

    def vectors(self) -> WordVectors:
        """Return the model's embedding table with a word for each row.

        Raises:
            ArgumentError: the model has no single table of tokens.
        """
        if isinstance(self.model, Seq2Seq):  # source and target may have separate tables
            raise ArgumentError(
                f"{self.directory} holds a {type(self.model).__name__}",
                expected="a GPT or a BERT, which has one table of tokens",
            )
        names = self.pieces(range(self.tokenizer.size))
        # a model's table may have more rows than its tokenizer has tokens
        return WordVectors(names, self.model.tokens.weight[: len(names)].detach().float().numpy())

    def batch(self, ids: Sequence[int]) -> Tensor:
        """Return N ids as a batch of one sequence, (1, N), on the model's device."""
        return torch.tensor([ids], device=next(self.model.parameters()).device)


@dataclass(frozen=True)
class LoadedGPT(LoadedHeedful):
    """A GPT of `heedful train`, a GPT-2 or a model of the Llama family, which continue texts."""

    model: GPT
    tokenizer: Tokenizer
    description = "a GPT of `heedful train`, a GPT-2 or a Llama, which continue texts"
    purpose = "continue a text with `heedful generate`"

    @property
    def endings(self) -> tuple[str, ...]:
        """The text of the end-of-document token, if the tokenizer has one."""
        end = self.tokenizer.special.get("eos")
        return () if end is None else (self.tokenizer.decode([end]),)

    def ids(self, text: str) -> Tensor:
        """Return the ids of a text of any length, (1, N); raise a `TextError` if it is empty.

        The first ids are those that the tokenizer puts before a text, such as <s>.
        """
        ids = self.tokenizer.encode(text)
        check_not_empty(len(ids))
        return self.batch([*self.tokenizer.prefix_ids, *ids])

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return the ids of a text, (1, N); errors as in `LoadedModel.read`."""
        refuse_second(second, "a GPT")
        ids = self.ids(text)
        check_length(ids.shape[1], self.context_length, cut)
        return self._model_inputs(ids[0, : self.context_length].tolist())

    def contexts(self, text: str, most: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; each begins with the tokens before a text, such as <s>."""
        first = self.tokenizer.prefix_ids
        room = room_for_text(len(first), self.context_length, most)
        parts = split_ids(self.tokenizer.encode(text), room)
        return [self._model_inputs([*first, *part]) for part in parts]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; the tokens before the text have none."""
        N = len(self.read(text, second, cut=cut).tokens)
        spans = [Span(0, *span) for span in self.tokenizer.spans(text)]
        return [*[None] * len(self.tokenizer.prefix_ids), *spans][:N]

    def _model_inputs(self, ids: list[int]) -> ModelInputs:
        return ModelInputs({"ids": self.batch(ids)}, self.pieces(ids))


@dataclass(frozen=True)
class LoadedBert(LoadedHeedful):
    """A BERT with a tokenizer that adds special tokens to a text or a pair; it fills masks."""

    model: Bert
    tokenizer: WordPieceTokenizer | RobertaTokenizer
    description = "a BERT, which guesses words from both sides"
    purpose = "fill [MASK] tokens with `heedful fill`"
    reads_pairs = True

    def inputs(self, text: str, second: str | None = None, *, cut: bool = False) -> Inputs:
        """Return a text or a pair with special tokens; errors as in `LoadedModel.read`.

        Truncation removes tokens of the texts, never special tokens.
        """
        inputs = self.tokenizer.inputs(text, second)
        check_not_empty(len(inputs.ids) - len(self.tokenizer.inputs("").ids))
        if check_length(len(inputs.ids), self.context_length, cut):
            return inputs
        return self.tokenizer.inputs(text, second, max_tokens=self.context_length)

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return ids and segments of a text or a pair, (1, N); errors as in `LoadedModel.read`."""
        return self._model_inputs(self.inputs(text, second, cut=cut))

    def contexts(self, text: str, most: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; each has special tokens."""
        special = len(self.tokenizer.inputs("").ids)
        room = room_for_text(special, self.context_length, most)
        return [self._model_inputs(inputs) for inputs in self.tokenizer.contexts(text, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; special tokens have none."""
        N = len(self.inputs(text, second, cut=cut).ids)
        return self.tokenizer.input_spans(text, second, max_tokens=N)

    def _model_inputs(self, inputs: Inputs) -> ModelInputs:
        ids, segments = map(self.batch, inputs)
        return ModelInputs({"ids": ids, "segments": segments}, self.pieces(inputs.ids))


@dataclass(frozen=True)
class LoadedSeq2Seq(LoadedHeedful):
    """An encoder–decoder of `heedful train --pairs`, which reads a source and writes a target."""

    model: Seq2Seq
    tokenizer: Tokenizer
    description = "an encoder–decoder, made by `heedful train --pairs`"
    purpose = "translate a source with `heedful translate`"

    def source(self, text: str, *, cut: bool = False) -> list[int]:
        """Return the ids of a source without the end token, for which room is left.

        White space around the text is removed, as in the training pairs.
        """
        ids = self.tokenizer.encode(text.strip())
        check_not_empty(len(ids))
        check_length(len(ids) + 1, self.context_length, cut)
        return ids[: self.context_length - 1]

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return a source (1, M) and the target (1, N) that the model generates for it."""
        refuse_second(second, "an encoder–decoder")
        return self._model_inputs(self.source(text, cut=cut))

    def contexts(self, text: str, most: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; each is a source, with the target generated for it."""
        room = room_for_text(1, self.context_length, most)
        ids = self.tokenizer.encode(text.strip())
        return [self._model_inputs(list(source)) for source in split_ids(ids, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; the spans are those of the source, whose end token has none."""
        refuse_second(second, "an encoder–decoder")
        before = len(text) - len(text.lstrip())
        pairs = self.tokenizer.spans(text.strip())[: len(self.source(text, cut=cut))]
        return [*(Span(0, before + start, before + end) for start, end in pairs), None]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each id; the begin and end tokens have a sign."""
        signs = {self.model.config.begin: BEGIN, self.model.config.end: END}
        return [signs.get(token) or self.tokenizer.pieces([token])[0] for token in ids]

    def rows(
        self, text: str, second: str | None = None, *, target: str | None = None, cut: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the ids of a source (1, M) and of a target so far (1, N), as the model reads them.

        Args:
            text: the source.
            second: a second text, which raises an error as in `read`.
            target: the target so far, possibly empty; default the target that the model generates.
            cut: as in `read`.

        Raises:
            TextError: as in `read`, or the target is as long as the context.
        """
        refuse_second(second, "an encoder–decoder")
        source, room = self.source(text, cut=cut), self.context_length - 1
        ids = None if target is None else self.tokenizer.encode(target)
        if ids is not None and len(ids) > room:
            raise TextError(
                f"a target of {len(ids):,} tokens",
                expected=f"at most {room:,}: the model's context without the begin token",
            )
        return self._rows(source, ids)

    def _model_inputs(self, source: list[int]) -> ModelInputs:
        rows = self._rows(source, None)
        tokens, target = (self.pieces(row[0].tolist()) for row in rows)
        return ModelInputs({"source": rows[0], "target": rows[1]}, tokens, target)

    def _rows(self, source: list[int], target: list[int] | None) -> tuple[Tensor, Tensor]:
        """Add the source's end token and the target's begin token; None: the likeliest target."""
        config = self.model.config
        target = translate(self.model, [source])[0][0].ids if target is None else target
        decoder_ids = [config.begin, *target][: self.context_length]
        return self.batch([*source, config.end]), self.batch(decoder_ids)
