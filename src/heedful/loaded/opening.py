"""Loading of a model with its tokenizer from a run, a Hugging Face directory or the hub."""

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
from heedful.models.huggingface.checkpoints import is_heedful, unsupported_architecture
from heedful.text import (
    EXTRA_IDS,
    BPETokenizer,
    RobertaTokenizer,
    Tokenizer,
    UnsupportedTokenizerError,
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
    """Load a model of any architecture with its tokenizer; public as `heedful.open`.

    heedful's own classes load a model of `heedful train`, a GPT-2, a BERT and the Llama family
    (Llama, Mistral, Qwen2, Qwen3). The transformers library loads any other model, and a model with
    a setting or tokenizer that heedful does not implement; the model's head is omitted unless it
    is needed to generate a target. A vision model is loaded with its image processor, for
    `opened.record(image="photo.jpg")`. Python code in a model's directory is never run.

    Args:
        path_or_name: a directory made by `heedful train`, a directory in Hugging Face format, or
            a name on the hub.
        checkpoint: for a run, "best" (the lowest validation loss) or "last".
        device: "cpu", "cuda", "mps", or "auto" for a GPU if there is one. Parameters are float32 on
            a CPU; on a GPU they have the type in the file.
        revision: the branch, tag or commit of a hub name.
        allow_pickle: read pickled weights (`.bin`) if there are no safetensors.

    Returns:
        the model in evaluation mode with its tokenizer.

    Raises:
        RunError: the directory or name does not exist, a file is missing or damaged, the tokenizer
            belongs to another model, or transformers is required and not installed.
        ArgumentError: the checkpoint or device does not exist.

    >>> from tempfile import TemporaryDirectory
    >>> from safetensors.torch import save_file
    >>> from heedful.models import GPT, GPTConfig, parameters_of, write_model_config
    >>> from heedful.text import CharacterTokenizer
    >>> config = GPTConfig(vocabulary=4, context_length=16, width=8, layers=2, heads=2)
    >>> with TemporaryDirectory() as folder:  # as `heedful train` would have written it
    ...     CharacterTokenizer(" adn").save(Path(folder))
    ...     write_model_config(Path(folder), config)
    ...     save_file(parameters_of(GPT(config)), f"{folder}/model.safetensors")
    ...     opened = open_model(folder, device="cpu")
    >>> opened.record("a dad")[1].tokens
    ['a', '·', 'd', 'a', 'd']
    """
    target = choose_device(device)
    directory = model_directory(path_or_name, revision=revision, allow_pickle=allow_pickle)
    if unsupported_architecture(directory) is None:
        try:
            return _open_heedful(directory, checkpoint, target, allow_pickle)
        except UnsupportedTokenizerError:
            if is_heedful(read_config(directory)):
                raise
    open_by_library = open_vision if reads_images(directory) else open_transformers
    return open_by_library(directory, target, allow_pickle=allow_pickle)


def open_as(
    kind: type[O],
    path_or_name: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "auto",
    revision: str | None = None,
    allow_pickle: bool = False,
) -> O:
    """Load one of heedful's own models of a given kind, such as `LoadedGPT`; see `open_model`.

    Raises:
        RunError: as in `open_model`, or the architecture is not one of heedful's.
        ArgumentError: the model is of another kind.
    """
    target = choose_device(device)
    directory = model_directory(path_or_name, revision=revision, allow_pickle=allow_pickle)
    architecture = unsupported_architecture(directory)
    if architecture is not None:
        raise RunError(
            f"{path_or_name} holds a model of the architecture {architecture}",
            expected=kind.description,
            remedy="use `heedful heads` or `heedful record`, which read any architecture",
        )
    opened = _open_heedful(directory, checkpoint, target, allow_pickle)
    if not isinstance(opened, kind):
        raise ArgumentError(
            f"{path_or_name} holds {opened.description}",
            expected=kind.description,
            remedy=opened.purpose,
        )
    return opened


def open_heedful(path_or_name: str | Path, **opening: Any) -> LoadedHeedful:
    """Load one of heedful's own models of any kind; see `open_as`."""
    return open_as(LoadedHeedful, path_or_name, **opening)  # type: ignore[type-abstract]


def _open_heedful(
    directory: Path, checkpoint: str, target: torch.device, allow_pickle: bool
) -> LoadedHeedful:
    # on a CPU, half precision is slower and needs no less memory for loading
    dtype = torch.float32 if target.type == "cpu" else None
    tokenizer = load_tokenizer(directory)
    model: Any = load_model(
        directory, checkpoint=checkpoint, allow_pickle=allow_pickle, dtype=dtype
    ).to(target)
    extra = EXTRA_IDS if isinstance(model, Seq2Seq) else 0
    check_tokenizer(tokenizer, model.config.vocabulary - extra, directory)
    if isinstance(model, Seq2Seq):
        return LoadedSeq2Seq(model, tokenizer, directory)
    if isinstance(model, GPT):
        return LoadedGPT(model, tokenizer, directory)
    if isinstance(tokenizer, BPETokenizer):
        tokenizer = RobertaTokenizer(tokenizer)
    if not isinstance(tokenizer, WordPieceTokenizer | RobertaTokenizer):
        raise RunError(
            f"{directory} has a BERT with a tokenizer of the kind {tokenizer.kind}",
            expected="WordPiece or byte-level BPE",
            cause="the tokenizer of another model",
        )
    return LoadedBert(model, tokenizer, directory)


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int, directory: Path) -> None:
    """Raise a `RunError` if the tokenizer has more tokens than the model's table has rows."""
    if tokenizer.size > vocabulary:
        raise RunError(
            f"the tokenizer in {directory} has {tokenizer.size:,} tokens",
            expected=f"at most {vocabulary:,}, the rows of the model's table",
            cause="the tokenizer of another model",
        )
