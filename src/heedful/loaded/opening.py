"""Opening a model on a device, with its tokenizer: of a run, of Hugging Face, or of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch

from heedful.device import choose_device
from heedful.errors import ArgumentError, RunError
from heedful.files.run_identity import read_config
from heedful.loaded.heedful_models import LoadedBert, LoadedGPT, LoadedHeedful, LoadedSeq2Seq
from heedful.loaded.loaded_model import LoadedModel
from heedful.loaded.transformers_models import open_transformers
from heedful.loaded.vision_models import open_vision, reads_images
from heedful.models import GPT, Seq2Seq, load_model, model_directory
from heedful.models.huggingface.checkpoints import foreign_name, is_ours
from heedful.text import (
    MARKS,
    BPETokenizer,
    ForeignTokenizerError,
    FramedTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    load_tokenizer,
)

O = TypeVar("O", bound=LoadedHeedful)  # noqa: E741


def open_model(
    path_or_name: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    revision: str | None = None,
    allow_pickle: bool = False,
) -> LoadedModel:
    """A model of any architecture with its tokenizer: `heedful.open`.

    One of heedful's, a GPT-2, a BERT or one of Llama's family (Llama, Mistral, Qwen2, Qwen3) is a
    model of heedful. Another, or one whose settings or tokenizer heedful does not have, is opened
    by the transformers library, without its head, with its own tokenizer, or with its image
    processor, for `opened.record(image="photo.jpg")`. Code that comes with a model is never run.

    Args:
        path_or_name: a directory made by `heedful train`, a directory in Hugging Face format, or
            a name on the hub.
        checkpoint: of a run, "best", the weights with the lowest validation loss, or "last".
        device: "cpu", "cuda", "mps"; "auto" takes a GPU where there is one. On a CPU the parameters
            are float32, elsewhere of the file's type.
        revision: of a hub name, the branch, tag or commit.
        allow_pickle: read pickled weights (`.bin`) where there are no safetensors.

    Returns:
        the model in evaluation mode and its tokenizer; `opened.record(text)` records.

    Raises:
        RunError: no such directory or name, a file missing or damaged, a tokenizer that is another
            model's, or an architecture that is not ours where transformers is not installed.
        ArgumentError: no such checkpoint, or a device that this machine lacks.

    >>> from tempfile import TemporaryDirectory
    >>> from safetensors.torch import save_file
    >>> from heedful.models import GPT, GPTConfig, parameters_of, write_description
    >>> from heedful.text import CharacterTokenizer
    >>> config = GPTConfig(vocabulary=4, context_length=16, width=8, layers=2, heads=2)
    >>> with TemporaryDirectory() as folder:  # as `heedful train` would have written it
    ...     CharacterTokenizer(" adn").save(Path(folder))
    ...     write_description(Path(folder), config)
    ...     save_file(parameters_of(GPT(config)), f"{folder}/model.safetensors")
    ...     opened = open_model(folder, device="cpu")
    >>> opened.record("a dad")[1].tokens
    ['a', '·', 'd', 'a', 'd']
    """
    where = choose_device(device)
    directory = model_directory(path_or_name, revision=revision, allow_pickle=allow_pickle)
    if foreign_name(directory) is None:
        try:
            return _open_ours(directory, checkpoint, where, allow_pickle)
        except ForeignTokenizerError:
            if is_ours(read_config(directory)):
                raise
    by_library = open_vision if reads_images(directory) else open_transformers
    return by_library(directory, where, allow_pickle=allow_pickle)


def open_as(
    kind: type[O],
    path_or_name: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    revision: str | None = None,
    allow_pickle: bool = False,
) -> O:
    """As `open_model`, for a model of heedful of one kind, such as `LoadedGPT`.

    Raises:
        RunError: as `open_model`, or a model of another architecture than heedful's.
        ArgumentError: a model of another kind.
    """
    where = choose_device(device)
    directory = model_directory(path_or_name, revision=revision, allow_pickle=allow_pickle)
    architecture = foreign_name(directory)
    if architecture is not None:
        raise RunError(
            f"{path_or_name} holds a model of the architecture {architecture}",
            expected=kind.described,
            remedy="see its attention with `heedful heads` or `heedful record`",
        )
    opened = _open_ours(directory, checkpoint, where, allow_pickle)
    if not isinstance(opened, kind):
        raise ArgumentError(
            f"{path_or_name} holds a {type(opened.model).__name__}",
            expected=kind.described,
            remedy=opened.purpose,
        )
    return opened


def open_ours(path_or_name: str | Path, **opening: Any) -> LoadedHeedful:
    """As `open_as`, for a model of heedful of any kind."""
    return open_as(LoadedHeedful, path_or_name, **opening)  # type: ignore[type-abstract]


def _open_ours(
    directory: Path, checkpoint: str, where: torch.device, allow_pickle: bool
) -> LoadedHeedful:
    # CPUs compute in single precision; half would be slower there, and no smaller on the way
    dtype = torch.float32 if where.type == "cpu" else None
    tokenizer = load_tokenizer(directory)
    model: Any = load_model(
        directory, checkpoint=checkpoint, allow_pickle=allow_pickle, dtype=dtype
    ).to(where)
    marks = MARKS if isinstance(model, Seq2Seq) else 0
    check_tokenizer(tokenizer, model.config.vocabulary - marks, directory)
    if isinstance(model, Seq2Seq):
        return LoadedSeq2Seq(model, tokenizer, directory)
    if isinstance(model, GPT):
        return LoadedGPT(model, tokenizer, directory)
    if isinstance(tokenizer, BPETokenizer):
        tokenizer = FramedTokenizer(tokenizer)
    if not isinstance(tokenizer, WordPieceTokenizer | FramedTokenizer):
        raise RunError(
            f"{directory} has a BERT with a tokenizer of the kind {tokenizer.kind}",
            expected="WordPiece or byte-level BPE",
            cause="the tokenizer of another model",
        )
    return LoadedBert(model, tokenizer, directory)


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int, directory: Path) -> None:
    """Refuse a tokenizer with more tokens than the model's table has rows; `RunError`."""
    if tokenizer.size > vocabulary:
        raise RunError(
            f"the tokenizer in {directory} has {tokenizer.size:,} tokens",
            expected=f"at most {vocabulary:,}, the rows of the model's table",
            cause="the tokenizer of another model",
        )
