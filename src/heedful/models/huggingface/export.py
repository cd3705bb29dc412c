"""Models of ours written in Hugging Face format, so that transformers opens them."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from heedful.errors import ArgumentError
from heedful.files import make_directory, save_tensors, write_json
from heedful.models.huggingface.checkpoints import ARCHITECTURES
from heedful.models.huggingface.tensor_files import SAFE
from heedful.models.parameters import parameters_of


def export_model(model: nn.Module, directory: Path) -> None:
    """Write `model.safetensors` and `config.json` of the same model in transformers.

    Args:
        model: one of ours whose settings an architecture of transformers has.
        directory: it is made where it is missing.

    Raises:
        ArgumentError: as `equal_of`.
        SaveError: the files cannot be written.
    """
    kind = equal_of(model)
    format = ARCHITECTURES[kind].format
    make_directory(directory)
    names = format.names(model.config)
    tensors = {
        name: tensor
        for ours, parameter in parameters_of(model).items()
        for name, tensor in names.of(ours).theirs(parameter).items()
    }
    save_tensors(directory / SAFE, tensors, {})
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    description = {**format.write_config(model.config, kind), "dtype": dtype}
    write_json(directory / "config.json", description)


def equal_of(model: nn.Module) -> str:
    """The `model_type` of transformers that computes the same as a model of ours.

    Raises:
        ArgumentError: there is none; all settings that do not fit the nearest one are named.
    """
    unlike = {
        kind: known.format.unlike(model.config, kind)
        for kind, known in ARCHITECTURES.items()
        if known.model is type(model)
    }
    if not unlike:
        raise ArgumentError(
            f"a {type(model).__name__}",
            expected="a model that transformers has too",
            remedy="it opens with heedful.load_model",
        )
    nearest = min(unlike, key=lambda kind: len(unlike[kind]))
    if unlike[nearest]:
        raise ArgumentError(
            f"a model with {', '.join(unlike[nearest])}",
            expected=f"the settings of an architecture of transformers; nearest is {nearest}",
            remedy="open it with heedful.load_model, or train one with --preset quick or gpt2",
        )
    return nearest
