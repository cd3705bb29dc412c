"""Models in directories: `config.json` says which, `model.safetensors` holds the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.configuration import nearest
from heedful.errors import ArgumentError, RunError
from heedful.files import load_tensors, read_json, write_json
from heedful.models.gpt import GPT, GPTConfig

FAMILIES = {"heedful-gpt": (GPTConfig, GPT)}
CHECKPOINTS = {"best": "model.safetensors", "last": "state/last.safetensors"}


def load_model(path_or_name: str | Path, *, checkpoint: str = "best") -> nn.Module:
    """A model from a directory made by `heedful train`, ready to evaluate.

    Args:
        path_or_name: the directory.
        checkpoint: "best", the weights with the lowest validation loss, or "last".

    Returns:
        the model in evaluation mode on the CPU; `model(ids)` has `.logits` and
        `.hidden_states`.

    Raises:
        RunError: no such directory, a file of it missing or damaged, or weights that do not
            fit its configuration (all of them are listed).
    """
    directory = Path(path_or_name)
    if checkpoint not in CHECKPOINTS:
        raise ArgumentError(f"checkpoint {checkpoint!r}", expected="'best' or 'last'")
    if not directory.is_dir():
        raise RunError(
            f"no directory {str(path_or_name)!r}",
            expected="one made by `heedful train`",
            remedy="check the path, or make one with `heedful train --out DIR`",
        )
    model = build(read_json(directory / "config.json"), directory / "config.json")
    tensors, _ = load_tensors(directory / CHECKPOINTS[checkpoint])
    if checkpoint == "last":
        prefix = "model."
        tensors = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    load_weights(model, tensors, directory)
    return model.eval()


def build(description: Mapping, source: Path) -> nn.Module:
    """The model, with fresh weights, that a `config.json` describes."""
    config, model = _configuration(description, source)
    return model(config)


def _configuration(description: Mapping, source: Path) -> tuple[GPTConfig, type[GPT]]:
    family = description.get("model_type") if isinstance(description, Mapping) else None
    if family not in FAMILIES:
        raise RunError(
            f"model_type {family!r} in {source}",
            expected=nearest(str(family), FAMILIES),
            cause="a model of another project",
        )
    config, model = FAMILIES[family]
    try:
        return config.from_dict(description["model"]), model
    except (ArgumentError, KeyError, TypeError) as error:
        raise RunError(
            f"{source} does not describe a model: {error}",
            cause="a damaged file, or one of a newer version of heedful",
        ) from error


def write_description(directory: Path, config: GPTConfig) -> None:
    """Write the `config.json` from which `build` makes the same model."""
    description = {"model_type": "heedful-gpt", "model": config.to_dict()}
    write_json(directory / "config.json", description)


def read_description(directory: Path) -> GPTConfig:
    """The configuration that `write_description` wrote."""
    path = directory / "config.json"
    config, _ = _configuration(read_json(path), path)
    return config


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, each once: a shared one (tied embeddings) under its first name."""
    return dict(model.named_parameters())


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy named tensors into a model; one error lists all that are missing or misshapen."""
    parameters = weights_of(model)
    wrong = [f"missing {name}" for name in parameters if name not in tensors]
    wrong += [f"unexpected {name}" for name in tensors if name not in parameters]
    wrong += [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(parameter.shape)}"
        for name, parameter in parameters.items()
        if name in tensors and tensors[name].shape != parameter.shape
    ]
    if wrong:
        raise RunError(
            f"weights in {source} do not fit: {', '.join(wrong)}",
            cause="files of two different runs in one directory",
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
