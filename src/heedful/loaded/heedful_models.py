"""heedful's own models, each with its tokenizer: GPT, BERT and encoder–decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from heedful.errors import ArgumentError, TextError
from heedful.loaded.loaded_model import LoadedModel, ModelInputs
from heedful.loaded.truncation import check_length, check_not_empty, refuse_second, room_for_text
from heedful.models import GPT, Bert, Seq2Seq
from heedful.models.beam_search import translate
from heedful.models.huggingface.checkpoints import stored_end_ids
from heedful.text import Inputs, RobertaTokenizer, Tokenizer, WordPieceTokenizer
from heedful.text.library_tokenizer import Span, split_ids
from heedful.text.word_vectors import WordVectors

BEGIN, END = "▶", "■"  # labels of an encoder–decoder's begin and end token


@dataclass(frozen=True)
class LoadedHeedful(LoadedModel):
    """One of heedful's own models with its tokenizer."""

    model: Any
    description: ClassVar[str] = "a model of `heedful train`, a GPT-2, a BERT or a Llama"
    purpose: ClassVar[str]  # what to do with such a model: the remedy in error messages

    @property
    def positions(self) -> tuple[str, Tensor]:
        """The kind of positions, and a table with a row for each; for rotary ones, the cosines."""
        default = "sinusoidal" if isinstance(self.model, Seq2Seq) else "learned"
        kind = getattr(self.model.config, "positions", default)
        return kind, self.model.cosines if kind == "rotary" else self.model.positions

    @property
    def context_length(self) -> int:
        """The maximum number of tokens that the model reads."""
        return self.model.config.context_length

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each id; an id without a token gets a label like "#7"."""
        size = self.tokenizer.size
        return [self.tokenizer.pieces([id])[0] if id < size else f"#{id}" for id in ids]

    def vectors(self) -> WordVectors:
        """Return the model's token embeddings, with a label for each row.

        Raises:
            ArgumentError: the model is an encoder–decoder, which may have two tables.
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
    """A GPT of `heedful train`, a GPT-2 or a model of the Llama family; it continues texts."""

    model: GPT
    tokenizer: Tokenizer
    description = "a GPT of `heedful train`, a GPT-2 or a Llama, which continues texts"
    purpose = "continue a text with `heedful generate`"

    @property
    def ends(self) -> frozenset[int]:
        """The ids that end a text: those of the checkpoint, else the tokenizer's end of document.

        Checkpoints list them in `generation_config.json`, and chat models have several.
        """
        end = self.tokenizer.special.get("eos")
        ends = stored_end_ids(self.directory) or ({end} if end is not None else ())
        return frozenset(id for id in ends if id in range(self.tokenizer.size))

    def ids(self, text: str) -> Tensor:
        """Return the ids of a text of any length, (1, N); raise a `TextError` if it is empty.

        The ids begin with those that the tokenizer puts before every text, such as <s>.
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

    def contexts(self, text: str, max_tokens: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; each context begins with the prefix tokens, such as <s>."""
        prefix = self.tokenizer.prefix_ids
        room = room_for_text(len(prefix), self.context_length, max_tokens)
        parts = split_ids(self.tokenizer.encode(text), room)
        return [self._model_inputs([*prefix, *part]) for part in parts]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; tokens like <s> before the text have no span."""
        N = len(self.read(text, second, cut=cut).tokens)
        spans = [Span(0, *span) for span in self.tokenizer.spans(text)]
        return [*[None] * len(self.tokenizer.prefix_ids), *spans][:N]

    def _model_inputs(self, ids: list[int]) -> ModelInputs:
        return ModelInputs({"ids": self.batch(ids)}, self.pieces(ids))


@dataclass(frozen=True)
class LoadedBert(LoadedHeedful):
    """A BERT, which reads a text or a pair with special tokens and predicts masked words."""

    model: Bert
    tokenizer: WordPieceTokenizer | RobertaTokenizer
    description = "a BERT, which predicts masked words"
    purpose = "fill [MASK] tokens with `heedful fill`"
    reads_pairs = True

    def inputs(self, text: str, second: str | None = None, *, cut: bool = False) -> Inputs:
        """Return the ids and segments of a text or a pair; errors as in `LoadedModel.read`.

        Special tokens are included, and truncation never removes them.
        """
        inputs = self.tokenizer.inputs(text, second)
        check_not_empty(len(inputs.ids) - len(self.tokenizer.inputs("").ids))
        if check_length(len(inputs.ids), self.context_length, cut):
            return inputs
        return self.tokenizer.inputs(text, second, max_tokens=self.context_length)

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return ids and segments of a text or a pair, (1, N); errors as in `LoadedModel.read`."""
        return self._model_inputs(self.inputs(text, second, cut=cut))

    def contexts(self, text: str, max_tokens: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; each context has special tokens."""
        special = len(self.tokenizer.inputs("").ids)
        room = room_for_text(special, self.context_length, max_tokens)
        return [self._model_inputs(inputs) for inputs in self.tokenizer.contexts(text, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; special tokens have no span."""
        N = len(self.inputs(text, second, cut=cut).ids)
        return self.tokenizer.input_spans(text, second, max_tokens=N)

    def _model_inputs(self, inputs: Inputs) -> ModelInputs:
        ids, segments = map(self.batch, inputs)
        return ModelInputs({"ids": ids, "segments": segments}, self.pieces(inputs.ids))


@dataclass(frozen=True)
class LoadedSeq2Seq(LoadedHeedful):
    """An encoder–decoder of `heedful train --pairs`, which generates a target for a source."""

    model: Seq2Seq
    tokenizer: Tokenizer
    description = "an encoder–decoder of `heedful train --pairs`"
    purpose = "translate a source with `heedful translate`"

    def source(self, text: str, *, cut: bool = False) -> list[int]:
        """Return the ids of a source, without the end token; errors as in `LoadedModel.read`.

        The source and an end token fit into the context. White space around the text is removed, as
        in the training pairs.
        """
        ids = self.tokenizer.encode(text.strip())
        check_not_empty(len(ids))
        check_length(len(ids) + 1, self.context_length, cut)
        return ids[: self.context_length - 1]

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return the source (1, M) and the target (1, N) that the model generates for it."""
        refuse_second(second, "an encoder–decoder")
        return self._model_inputs(self.source(text, cut=cut))

    def contexts(self, text: str, max_tokens: int | None = None) -> list[ModelInputs]:
        """See `LoadedModel.contexts`; each context is a source with its generated target."""
        room = room_for_text(1, self.context_length, max_tokens)
        ids = self.tokenizer.encode(text.strip())
        return [self._model_inputs(list(source)) for source in split_ids(ids, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """See `LoadedModel.spans`; spans of the source's tokens, and None for its end token."""
        refuse_second(second, "an encoder–decoder")
        indent = len(text) - len(text.lstrip())
        pairs = self.tokenizer.spans(text.strip())[: len(self.source(text, cut=cut))]
        return [*(Span(0, indent + start, indent + end) for start, end in pairs), None]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each id; the begin token is "▶", the end token "■"."""
        signs = {self.model.config.begin: BEGIN, self.model.config.end: END}
        return [signs.get(token) or self.tokenizer.pieces([token])[0] for token in ids]

    def source_and_target(
        self, text: str, second: str | None = None, *, target: str | None = None, cut: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the model's inputs: the ids of a source (1, M) and of a target so far (1, N).

        Args:
            text: the source.
            second: must be None.
            target: the target so far, possibly empty; default the target that the model generates.
            cut: as in `read`.

        Raises:
            TextError: as in `read`, or target and begin token exceed the context.
            ArgumentError: `second` is not None.
        """
        refuse_second(second, "an encoder–decoder")
        source, room = self.source(text, cut=cut), self.context_length - 1
        ids = None if target is None else self.tokenizer.encode(target)
        if ids is not None and len(ids) > room:
            raise TextError(
                f"a target of {len(ids):,} tokens",
                expected=f"at most {room:,}: the model's context without the begin token",
            )
        return self._batches(source, ids)

    def _model_inputs(self, source: list[int]) -> ModelInputs:
        rows = self._batches(source, None)
        tokens, target = (self.pieces(row[0].tolist()) for row in rows)
        return ModelInputs({"source": rows[0], "target": rows[1]}, tokens, target)

    def _batches(self, source: list[int], target: list[int] | None) -> tuple[Tensor, Tensor]:
        """Add the end token to the source and the begin token to the target.

        If the target is None, the model generates it.
        """
        config = self.model.config
        target = translate(self.model, [source])[0][0].ids if target is None else target
        decoder_ids = [config.begin, *target][: self.context_length]
        return self.batch([*source, config.end]), self.batch(decoder_ids)
