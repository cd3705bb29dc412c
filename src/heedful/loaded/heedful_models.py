"""The models of heedful with their tokenizers: how each reads a text, and what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError, TextError
from heedful.loaded.loaded_model import LoadedModel, Pass
from heedful.loaded.truncation import check_length, check_not_empty, refuse_second, room_beside
from heedful.models import GPT, Bert, Seq2Seq
from heedful.models.beam_search import translate
from heedful.text import FramedTokenizer, Inputs, Tokenizer, WordPieceTokenizer
from heedful.text.library_tokenizer import Span, in_contexts
from heedful.text.word_vectors import WordVectors

BEGIN, END = "▶", "■"  # how the begin of a target, and the end of a source or target, are shown


class Positions(NamedTuple):
    """How a model knows where a token stands: a word for it, and its table, a row for each place.

    Of rotary positions the table has the cosines of the angles.
    """

    kind: str
    table: Tensor


@dataclass(frozen=True)
class LoadedHeedful(LoadedModel):
    """A model of heedful with its tokenizer."""

    model: Any
    described: ClassVar[str] = "a model of `heedful train`, a GPT-2, a BERT or a Llama"
    purpose: ClassVar[str]  # what to do with one

    @property
    def positions(self) -> Positions:
        """How it knows where a token stands."""
        usual = "sinusoidal" if isinstance(self.model, Seq2Seq) else "learned"
        kind = getattr(self.model.config, "positions", usual)
        return Positions(kind, self.model.cosines if kind == "rotary" else self.model.positions)

    @property
    def context_length(self) -> int:
        """The most tokens that the model reads."""
        return self.model.config.context_length

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable label for each token; a row of the model without a token has its number."""
        size = self.tokenizer.size
        return [self.tokenizer.pieces([id])[0] if id < size else f"#{id}" for id in ids]

    def vectors(self) -> WordVectors:
        """Its tokens as words, each with its row of the model's table.

        Raises:
            ArgumentError: a model without one table of tokens.
        """
        if isinstance(self.model, Seq2Seq):  # sources and targets may have a table each
            raise ArgumentError(
                f"{self.directory} holds a {type(self.model).__name__}",
                expected="a GPT or a BERT, which has one table of tokens",
            )
        names = self.pieces(range(self.tokenizer.size))
        # a model's table may have more rows than its tokenizer has tokens
        return WordVectors(names, self.model.tokens.weight[: len(names)].detach().float().numpy())

    def batch(self, ids: Sequence[int]) -> Tensor:
        """Numbers of N tokens as a batch of one, (1, N), on the model's device."""
        return torch.tensor([ids], device=next(self.model.parameters()).device)


@dataclass(frozen=True)
class LoadedGPT(LoadedHeedful):
    """A GPT of `heedful train`, a GPT-2 or one of Llama's family: it continues a text."""

    model: GPT
    tokenizer: Tokenizer
    described = "a GPT of `heedful train`, a GPT-2 or a Llama, which continue texts"
    purpose = "continue a text with `heedful generate`"

    @property
    def endings(self) -> tuple[str, ...]:
        """The text of the token that ends a document, where the tokenizer has one."""
        end = self.tokenizer.special.get("eos")
        return () if end is None else (self.tokenizer.decode([end]),)

    def ids(self, text: str) -> Tensor:
        """The ids of a text of any length, (1, N); `TextError` where it is empty.

        They begin with those that the tokenizer puts before a text, such as that of <s>.
        """
        ids = self.tokenizer.encode(text)
        check_not_empty(len(ids))
        return self.batch([*self.tokenizer.first, *ids])

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """The ids of a text, (1, N); errors as `LoadedModel.read`."""
        refuse_second(second, "a GPT")
        ids = self.ids(text)
        check_length(ids.shape[1], self.context_length, cut)
        return self._pass(ids[0, : self.context_length].tolist())

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `LoadedModel.contexts`; each begins with what the tokenizer puts before a text."""
        first = self.tokenizer.first
        room = room_beside(len(first), self.context_length, most)
        return [
            self._pass([*first, *part]) for part in in_contexts(self.tokenizer.encode(text), room)
        ]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `LoadedModel.spans`; what stands before a text has none."""
        N = len(self.read(text, second, cut=cut).tokens)
        spans = [Span(0, *span) for span in self.tokenizer.spans(text)]
        return [*[None] * len(self.tokenizer.first), *spans][:N]

    def _pass(self, ids: list[int]) -> Pass:
        return Pass({"ids": self.batch(ids)}, self.pieces(ids))


@dataclass(frozen=True)
class LoadedBert(LoadedHeedful):
    """A BERT with a tokenizer that frames a text or a pair: it fills gaps."""

    model: Bert
    tokenizer: WordPieceTokenizer | FramedTokenizer
    described = "a BERT, which guesses words from both sides"
    purpose = "fill its gaps with `heedful fill`"
    reads_pairs = True

    def inputs(self, text: str, second: str | None = None, *, cut: bool = False) -> Inputs:
        """A text or a pair, framed as the model reads it; errors as `LoadedModel.read`.

        A special token stays where it stands: what is cut are the texts within.
        """
        framed = self.tokenizer.inputs(text, second)
        check_not_empty(len(framed.ids) - len(self.tokenizer.inputs("").ids))
        if check_length(len(framed.ids), self.context_length, cut):
            return framed
        return self.tokenizer.inputs(text, second, most=self.context_length)

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """The ids and segments of a text or a pair, (1, N) each; errors as `LoadedModel.read`."""
        return self._pass(self.inputs(text, second, cut=cut))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `LoadedModel.contexts`, each framed."""
        frame = len(self.tokenizer.inputs("").ids)
        room = room_beside(frame, self.context_length, most)
        return [self._pass(inputs) for inputs in self.tokenizer.contexts(text, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `LoadedModel.spans`; the frame has none."""
        N = len(self.inputs(text, second, cut=cut).ids)
        return self.tokenizer.framed_spans(text, second, most=N)

    def _pass(self, inputs: Inputs) -> Pass:
        ids, segments = map(self.batch, inputs)
        return Pass({"ids": ids, "segments": segments}, self.pieces(inputs.ids))


@dataclass(frozen=True)
class LoadedSeq2Seq(LoadedHeedful):
    """An encoder–decoder of `heedful train --pairs`: it reads a source, and writes the target."""

    model: Seq2Seq
    tokenizer: Tokenizer
    described = "an encoder–decoder, made by `heedful train --pairs`"
    purpose = "give it a source with `heedful translate`"

    def source(self, text: str, *, cut: bool = False) -> list[int]:
        """The ids of a source, without the end token, which takes a place too.

        White space around it is left out, as it was of the pairs that the model learned.
        """
        ids = self.tokenizer.encode(text.strip())
        check_not_empty(len(ids))
        check_length(len(ids) + 1, self.context_length, cut)
        return ids[: self.context_length - 1]

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """A source (1, M) and the target that the model finds for it, as it reads it, (1, N)."""
        refuse_second(second, "an encoder–decoder")
        return self._pass(self.source(text, cut=cut))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `LoadedModel.contexts`: each a source, with the target that the model finds for it."""
        room = room_beside(1, self.context_length, most)
        ids = self.tokenizer.encode(text.strip())
        return [self._pass(list(source)) for source in in_contexts(ids, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `LoadedModel.spans`, of the source; its end has none."""
        refuse_second(second, "an encoder–decoder")
        before = len(text) - len(text.lstrip())
        pairs = self.tokenizer.spans(text.strip())[: len(self.source(text, cut=cut))]
        return [*(Span(0, before + start, before + end) for start, end in pairs), None]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable label for each token; those that begin and end have a sign."""
        marks = {self.model.config.begin: BEGIN, self.model.config.end: END}
        return [marks.get(token) or self.tokenizer.pieces([token])[0] for token in ids]

    def rows(
        self, text: str, second: str | None = None, *, target: str | None = None, cut: bool = False
    ) -> tuple[Tensor, Tensor]:
        """A source (1, M) and what is written of its target so far (1, N), as the model reads them.

        Args:
            text: the source.
            second: refused, as by `read`.
            target: what is written so far, which may be nothing; default what the model itself
                writes.
            cut: as `read`.

        Raises:
            TextError: as `read`, or a target as long as the context.
        """
        refuse_second(second, "an encoder–decoder")
        source, room = self.source(text, cut=cut), self.context_length - 1
        written = None if target is None else self.tokenizer.encode(target)
        if written is not None and len(written) > room:
            raise TextError(
                f"a target of {len(written):,} tokens",
                expected=f"at most {room:,}: the model's context, and a begin",
            )
        return self._rows(source, written)

    def _pass(self, source: list[int]) -> Pass:
        rows = self._rows(source, None)
        tokens, target = (self.pieces(row[0].tolist()) for row in rows)
        return Pass({"source": rows[0], "target": rows[1]}, tokens, target)

    def _rows(self, source: list[int], target: list[int] | None) -> tuple[Tensor, Tensor]:
        """Both as the model reads them while it writes: a source's end, a target's begin.

        Without a target it is the likeliest.
        """
        config = self.model.config
        target = translate(self.model, [source])[0][0].ids if target is None else target
        begun = [config.begin, *target][: self.context_length]
        return self.batch([*source, config.end]), self.batch(begun)
