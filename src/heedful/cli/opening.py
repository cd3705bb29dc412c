"""Opening a model on a device, with its tokenizer: of a run, of Hugging Face, or of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from heedful.errors import ArgumentError, RunError, TextError
from heedful.models import GPT, load_model, model_directory
from heedful.text import Tokenizer, load_tokenizer
from heedful.train import choose_device


class Run(NamedTuple):
    """A trained model with its tokenizer, and the directory that has them."""

    model: GPT
    tokenizer: Tokenizer
    directory: Path

    @property
    def endings(self) -> tuple[str, ...]:
        """The text of the token that ends a document, where the tokenizer has one."""
        end = self.tokenizer.special.get("eos")
        return () if end is None else (self.tokenizer.decode([end]),)

    def ids(self, text: str) -> torch.Tensor:
        """The ids of a text as a batch of one, (1, N), on the model's device."""
        ids = self.tokenizer.encode(text)
        if not ids:
            raise TextError("an empty text", expected="at least one token")
        return torch.tensor([ids], device=next(self.model.parameters()).device)


def open_run(
    name: Path,
    checkpoint: str = "best",
    device: str = "auto",
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
) -> Run:
    """The GPT and tokenizer of a run directory, a directory of Hugging Face, or a hub name.

    Raises:
        RunError: no such model, or a tokenizer that is another model's.
        ArgumentError: a model that does not continue texts, such as BERT.
    """
    where = choose_device(device)
    directory = model_directory(name, revision=revision, allow_pickle=allow_pickle)
    # CPUs compute in single precision; half would be slower there, and no smaller on the way
    dtype = torch.float32 if where.type == "cpu" else None
    model = load_model(directory, checkpoint=checkpoint, allow_pickle=allow_pickle, dtype=dtype)
    if not isinstance(model, GPT):
        raise ArgumentError(
            f"{name} holds a {type(model).__name__}", expected="a GPT, which continues texts"
        )
    tokenizer = load_tokenizer(directory)
    check_tokenizer(tokenizer, model.config.vocabulary, directory)
    return Run(model.to(where), tokenizer, directory)


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int, directory: Path) -> None:
    """Refuse a tokenizer with ids that the model has no row for."""
    if tokenizer.size > vocabulary:
        raise RunError(
            f"the tokenizer in {directory} has {tokenizer.size:,} tokens",
            expected=f"at most {vocabulary:,}, the rows of the model's table",
            cause="the tokenizer of another model",
        )
