"""Models in directories: `config.json` says which, `model.safetensors` holds the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.configuration import Configuration, nearest
from heedful.errors import ArgumentError, RunError
from heedful.files import load_tensors, write_checked_json
from heedful.files.run_identity import RUN, check_belongs, read_config
from heedful.files.sharded import about_tensors, latest_of, load_sharded
from heedful.models.bert import Bert, BertConfig
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.models.gpt import GPT, GPTConfig
from heedful.models.huggingface.checkpoints import is_ours, load_pretrained, pretrained_shape
from heedful.models.huggingface.hub import model_directory
from heedful.models.parameters import (
    assign,
    check_fit,
    parameters_of,
    shapes_of,
    without_parameters,
)
from heedful.models.seq2seq import Seq2Seq, Seq2SeqConfig
from heedful.processes import Processes

# A family adds its line here, and to `pretrained.ARCHITECTURES` where others' checkpoints fit it.
FAMILIES: dict[str, tuple[type[Configuration], Callable[[Any], nn.Module]]] = {
    "heedful-gpt": (GPTConfig, GPT),
    "heedful-bert": (BertConfig, Bert),
    "heedful-seq2seq": (Seq2SeqConfig, Seq2Seq),
}


def load_model(
    path_or_name: str | Path,
    *,
    checkpoint: str = "best",
    revision: str | None = None,
    allow_pickle: bool = False,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A model from a directory or from the Hugging Face hub, ready to evaluate.

    Args:
        path_or_name: a directory made by `heedful train`, a directory in Hugging Face format, or
            a name on the hub.
        checkpoint: of a run, "best", the weights with the lowest validation loss, or "last".
        revision: of a hub name, the branch, tag or commit.
        allow_pickle: read pickled weights (`.bin`) where there are no safetensors.
        dtype: the type of the parameters; default that of the file.

    Returns:
        the model in evaluation mode on the CPU; `model(ids)` has `.logits` and
        `.hidden_states`.

    Raises:
        RunError: no such directory or name, an architecture that is not ours, a file missing or
            damaged, or weights that do not fit their configuration (all of them are listed).
    """
    if checkpoint not in CHECKPOINTS:
        raise ArgumentError(f"checkpoint {checkpoint!r}", expected="'best' or 'last'")
    directory = model_directory(path_or_name, revision=revision, allow_pickle=allow_pickle)
    description = read_config(directory)
    if not is_ours(description):
        return load_pretrained(directory, allow_pickle=allow_pickle, dtype=dtype)
    config, family = _described(description, directory / "config.json")
    path = directory / CHECKPOINTS[checkpoint]
    if checkpoint == "last":
        path = latest_of(path, directory / SHARDED) or path
    if path.is_dir():
        tensors = load_sharded(path, lambda _, shape: torch.zeros(shape), Processes())
        about = about_tensors(path)
    else:
        tensors, about = load_tensors(path)
    if about:  # those of another program say nothing
        check_belongs(path, RUN, about.get(RUN), directory)
    if checkpoint == "last":
        prefix = "model."
        tensors = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    model = without_parameters(lambda: family(config))
    check_fit(shapes_of(parameters_of(model)), shapes_of(tensors), directory)
    return assign(model, lambda name: tensors[name].to(dtype, copy=True)).eval()


def model_shape(directory: Path, *, allow_pickle: bool = False) -> nn.Module:
    """The model of a directory with shapes alone: no weight is read; errors as `load_model`."""
    description = read_config(directory)
    if not is_ours(description):
        return pretrained_shape(directory, allow_pickle=allow_pickle)
    config, family = _described(description, directory / "config.json")
    return without_parameters(lambda: family(config))


def _described(description: Any, source: Path) -> tuple[Any, Callable[[Any], nn.Module]]:
    """The configuration in a `config.json`, and what makes its model."""
    family = description.get("model_type") if isinstance(description, Mapping) else None
    if family not in FAMILIES:
        raise RunError(
            f"model_type {family!r} in {source}",
            expected=nearest(str(family), FAMILIES),
            cause="a damaged file, or one of another version of heedful",
        )
    config, model = FAMILIES[family]
    try:
        return config.from_dict(description["model"]), model
    except (ArgumentError, KeyError, TypeError) as error:
        raise RunError(
            f"{source} does not describe a model: {error}",
            cause="a damaged file, or one of another version of heedful",
        ) from error


def write_description(directory: Path, config: Configuration, **more: Any) -> None:
    """Write the `config.json` from which `load_model` makes the same model, and what else it says.

    It has a checksum, as its last entry.
    """
    family = next(name for name, (kind, _) in FAMILIES.items() if kind is type(config))
    about = {"model_type": family, "model": config.to_dict(), **more}
    write_checked_json(directory / "config.json", about)


def read_description(directory: Path) -> Any:
    """The configuration that `write_description` wrote."""
    config, _ = _described(read_config(directory), directory / "config.json")
    return config
