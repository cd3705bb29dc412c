"""Export of heedful's models to the Hugging Face format, for transformers."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from heedful.errors import ArgumentError
from heedful.files import make_directory, save_tensors, write_json
from heedful.models.huggingface.checkpoints import ARCHITECTURES
from heedful.models.huggingface.tensor_files import SAFE
from heedful.models.parameters import parameters_of


def export_model(model: nn.Module, directory: Path) -> None:
    """Write `model.safetensors` and `config.json` of the equivalent model of transformers.

    Args:
        model: a heedful model whose settings an architecture of transformers supports.
        directory: the output directory; it is created if missing.

    Raises:
        ArgumentError: as `equivalent_type`.
        SaveError: the files cannot be written.
    """
    kind = equivalent_type(model)
    format = ARCHITECTURES[kind].format
    make_directory(directory)
    names = format.names(model.config)
    tensors = {
        key: tensor
        for name, parameter in parameters_of(model).items()
        for key, tensor in names.entry(name).to_checkpoint(parameter).items()
    }
    save_tensors(directory / SAFE, tensors, {})
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    description = {**format.write_config(model.config, kind), "dtype": dtype}
    write_json(directory / "config.json", description)


def equivalent_type(model: nn.Module) -> str:
    """Return the `model_type` of transformers that computes the same as a heedful model.

    Raises:
        ArgumentError: there is none; the error lists the settings that the nearest type lacks.
    """
    mismatches = {
        kind: architecture.format.mismatches(model.config, kind)
        for kind, architecture in ARCHITECTURES.items()
        if architecture.model is type(model)
    }
    if not mismatches:
        raise ArgumentError(
            f"a {type(model).__name__}",
            expected="a model that transformers has, too",
            remedy="open it with heedful.load_model",
        )
    nearest = min(mismatches, key=lambda kind: len(mismatches[kind]))
    if mismatches[nearest]:
        raise ArgumentError(
            f"a model with {', '.join(mismatches[nearest])}",
            expected=f"the settings of an architecture of transformers; nearest is {nearest}",
            remedy="open it with heedful.load_model, or train a model with --preset quick or gpt2",
        )
    return nearest
