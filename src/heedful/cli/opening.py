"""Opening a model on a device, with its tokenizer: of a run, of Hugging Face, or of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from heedful.cli.fitting import check_not_empty, must_cut
from heedful.cli.foreign import foreign_name
from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, Bert, Seq2Seq, load_model, model_directory
from heedful.ops import Steps
from heedful.text import (
    MARKS,
    BPETokenizer,
    FramedTokenizer,
    Inputs,
    Tokenizer,
    WordPieceTokenizer,
    load_tokenizer,
)
from heedful.train import choose_device
from heedful.translate import translate

R = TypeVar("R")
A_GPT = "a GPT of `heedful train` or a GPT-2, which continues texts"
A_BERT = "a BERT, which guesses words from both sides"
A_SEQ2SEQ = "an encoder–decoder, made by `heedful train --pairs`"
END = "■"  # how the end of a source or target is shown


class Reading(NamedTuple):
    """The tokens that ask and those that answer, and what each layer does with them."""

    queries: list[str]
    keys: list[str]
    layers: Iterator[Steps]


class Run(NamedTuple):
    """A trained model with its tokenizer, and the directory that has them."""

    model: GPT
    tokenizer: Tokenizer
    directory: Path

    @property
    def purpose(self) -> str:
        """What to do with it."""
        return "continue a text with `heedful generate`"

    @property
    def endings(self) -> tuple[str, ...]:
        """The text of the token that ends a document, where the tokenizer has one."""
        end = self.tokenizer.special.get("eos")
        return () if end is None else (self.tokenizer.decode([end]),)

    def ids(self, text: str) -> torch.Tensor:
        """The ids of a text as a batch of one, (1, N), on the model's device."""
        ids = self.tokenizer.encode(text)
        check_not_empty(len(ids))
        return torch.tensor([ids], device=next(self.model.parameters()).device)

    def fitting(self, text: str, cut: bool = False) -> torch.Tensor:
        """As `ids`, for a text that is read at once; errors as `must_cut`."""
        ids, context_length = self.ids(text), self.model.config.context_length
        return ids[:, :context_length] if must_cut(ids.shape[1], context_length, cut) else ids

    @property
    def layers(self) -> int:
        """Its layers of attention."""
        return self.model.config.layers

    def steps(self, text: str, second: str | None = None, cut: bool = False) -> Reading:
        """How the tokens of a text see each other."""
        _refuse_second(second, "a GPT")
        ids = self.fitting(text, cut)
        labels = self.tokenizer.pieces(ids[0].tolist())
        return Reading(labels, labels, self.model.steps(ids))


class BertRun(NamedTuple):
    """A BERT with its tokenizer, and the directory that has them."""

    model: Bert
    tokenizer: WordPieceTokenizer | FramedTokenizer
    directory: Path

    @property
    def purpose(self) -> str:
        """What to do with it."""
        return "fill its gaps with `heedful fill`"

    @property
    def layers(self) -> int:
        """Its layers of attention."""
        return self.model.config.layers

    def inputs(self, text: str, second: str | None = None, cut: bool = False) -> Inputs:
        """A text or a pair, framed as the model reads it; errors as `must_cut`.

        A special token stays where it stands: what is cut are the texts within.
        """
        framed, context_length = (
            self.tokenizer.inputs(text, second),
            self.model.config.context_length,
        )
        check_not_empty(len(framed.ids) - len(self.tokenizer.inputs("").ids))
        if must_cut(len(framed.ids), context_length, cut):
            return self.tokenizer.inputs(text, second, most=context_length)
        return framed

    def steps(self, text: str, second: str | None = None, cut: bool = False) -> Reading:
        """How the tokens of a text or a pair, framed, see each other."""
        inputs = self.inputs(text, second, cut)
        device = self.model.positions.device
        ids, segments = (torch.tensor([numbers], device=device) for numbers in inputs)
        labels = self.tokenizer.pieces(inputs.ids)
        return Reading(labels, labels, self.model.steps(ids, segments=segments))


class Seq2SeqRun(NamedTuple):
    """An encoder–decoder with its tokenizer, and the directory that has them."""

    model: Seq2Seq
    tokenizer: Tokenizer
    directory: Path

    @property
    def purpose(self) -> str:
        """What to do with it."""
        return "give it a source with `heedful translate`"

    @property
    def layers(self) -> int:
        """Its layers of cross-attention."""
        return len(self.model.decoder)

    def source(self, text: str, cut: bool = False) -> list[int]:
        """The ids of a source, without its end, which takes a place too; errors as `must_cut`.

        White space around it is left out, as it was of the pairs that the model learned.
        """
        ids, context_length = self.tokenizer.encode(text.strip()), self.model.config.context_length
        check_not_empty(len(ids))
        return ids[: context_length - 1] if must_cut(len(ids), context_length, cut, ends=1) else ids

    def steps(self, text: str, second: str | None = None, cut: bool = False) -> Reading:
        """How the tokens of a text's translation look at it, each while it is written."""
        _refuse_second(second, "an encoder–decoder")
        ids, config = self.source(text, cut), self.model.config
        target = translate(self.model, [ids])[0][0].ids
        device = self.model.positions.device
        source, begun = (
            torch.tensor([row], device=device)
            for row in ([*ids, config.end], [config.begin, *target])
        )
        begun = begun[:, : config.context_length]
        return Reading(
            [*self.tokenizer.pieces(target), END][: begun.shape[1]],
            [*self.tokenizer.pieces(ids), END],
            self.model.cross_steps(source, begun),
        )


def _refuse_second(second: str | None, model: str) -> None:
    if second is not None:
        raise ArgumentError(
            "a second text", expected="one text", cause=f"{model}; a BERT reads pairs"
        )


def open_run(
    name: Path,
    checkpoint: str = "best",
    device: str = "auto",
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    remedy: str | None = None,
) -> Run:
    """The GPT and tokenizer of a run directory, a directory of Hugging Face, or a hub name.

    `remedy` is what to do with a model of another kind; default what it is for.

    Raises:
        RunError: no such model, or a tokenizer that is another model's.
        ArgumentError: a model that does not continue texts, such as BERT.
    """
    opened = open_reader(
        name, checkpoint, device, revision=revision, allow_pickle=allow_pickle, expected=A_GPT
    )
    return _only(Run, opened, name, A_GPT, remedy)


def open_bert(
    name: Path,
    checkpoint: str = "best",
    device: str = "auto",
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
) -> BertRun:
    """The BERT and tokenizer of a directory or a hub name; errors as `open_run`."""
    opened = open_reader(
        name, checkpoint, device, revision=revision, allow_pickle=allow_pickle, expected=A_BERT
    )
    return _only(BertRun, opened, name, A_BERT)


def open_seq2seq(name: Path, checkpoint: str = "best", device: str = "auto") -> Seq2SeqRun:
    """The encoder–decoder and tokenizer of a run directory; errors as `open_run`."""
    opened = open_reader(name, checkpoint, device, expected=A_SEQ2SEQ)
    return _only(Seq2SeqRun, opened, name, A_SEQ2SEQ)


def _only(
    kind: type[R],
    opened: Run | BertRun | Seq2SeqRun,
    name: Path,
    expected: str,
    remedy: str | None = None,
) -> R:
    if not isinstance(opened, kind):
        raise ArgumentError(
            f"{name} holds a {type(opened.model).__name__}",
            expected=expected,
            remedy=remedy or opened.purpose,
        )
    return opened


def open_reader(
    name: Path,
    checkpoint: str = "best",
    device: str = "auto",
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    expected: str = "a model of `heedful train`, a GPT-2 or a BERT",
) -> Run | BertRun | Seq2SeqRun:
    """The model and tokenizer of a directory or a hub name; errors as `open_run`.

    `expected` is what a model of another architecture is told that was wanted.
    """
    where = choose_device(device)
    directory = model_directory(name, revision=revision, allow_pickle=allow_pickle)
    foreign = foreign_name(directory)
    if foreign is not None:
        raise RunError(
            f"{name} holds a model of the architecture {foreign}",
            expected=expected,
            remedy="see its attention with `heedful heads` or `heedful record`",
        )
    # CPUs compute in single precision; half would be slower there, and no smaller on the way
    dtype = torch.float32 if where.type == "cpu" else None
    model: Any = load_model(
        directory, checkpoint=checkpoint, allow_pickle=allow_pickle, dtype=dtype
    )
    tokenizer = load_tokenizer(directory)
    own = MARKS if isinstance(model, Seq2Seq) else 0
    check_tokenizer(tokenizer, model.config.vocabulary - own, directory)
    if isinstance(model, Seq2Seq):
        return Seq2SeqRun(model.to(where), tokenizer, directory)
    if isinstance(model, GPT):
        return Run(model.to(where), tokenizer, directory)
    return BertRun(model.to(where), _framing(tokenizer, directory), directory)


def _framing(tokenizer: Tokenizer, directory: Path) -> WordPieceTokenizer | FramedTokenizer:
    """A tokenizer that frames a text, as a BERT reads it."""
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer
    if isinstance(tokenizer, BPETokenizer):
        return FramedTokenizer(tokenizer)
    raise RunError(
        f"{directory} has a BERT with a tokenizer of the kind {tokenizer.kind}",
        expected="WordPiece or byte-level BPE",
        cause="the tokenizer of another model",
    )


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int, directory: Path) -> None:
    """Refuse a tokenizer with ids that the model has no row for."""
    if tokenizer.size > vocabulary:
        raise RunError(
            f"the tokenizer in {directory} has {tokenizer.size:,} tokens",
            expected=f"at most {vocabulary:,}, the rows of the model's table",
            cause="the tokenizer of another model",
        )
