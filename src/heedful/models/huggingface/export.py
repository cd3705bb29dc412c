"""Models of ours written in Hugging Face format, so that transformers opens them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.files import make_directory, save_tensors, write_json
from heedful.models.gpt import GPT
from heedful.models.huggingface import llama_export
from heedful.models.huggingface.checkpoints import ARCHITECTURES
from heedful.models.huggingface.parameter_names import Names
from heedful.models.huggingface.tensor_files import SAFE
from heedful.models.named_parameters import parameters_of


class Written(NamedTuple):
    """How models of ours become one `model_type` of Hugging Face.

    Args:
        model: our class.
        tensors: of a model, by their names.
        write_config: the content of `config.json`, from our configuration.
        unlike: our settings that it does not have, as `name = value`.
    """

    model: Callable[[Any], nn.Module]
    tensors: Callable[[Any], dict[str, Tensor]]
    write_config: Callable[[Any], dict[str, Any]]
    unlike: Callable[[Any], list[str]]


def _renamed(names: Names, model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor
        for ours, parameter in parameters_of(model).items()
        for name, tensor in names.of(ours).theirs(parameter).items()
    }


WRITTEN = {
    kind: Written(
        known.model,
        functools.partial(_renamed, known.names),
        known.write_config,
        known.unlike,
    )
    for kind, known in ARCHITECTURES.items()
} | {
    kind: Written(
        GPT,
        llama_export.tensors,
        llama_export.write_config,
        functools.partial(llama_export.unlike, qk_norm=qk_norm),
    )
    for kind, qk_norm in (("llama", False), ("qwen3", True))
}


def export_model(model: nn.Module, directory: Path) -> None:
    """Write `model.safetensors` and `config.json` of the same model in transformers.

    Args:
        model: one of ours whose settings an architecture of transformers has.
        directory: it is made where it is missing.

    Raises:
        ArgumentError: as `equal_of`.
        SaveError: the files cannot be written.
    """
    written = equal_of(model)
    make_directory(directory)
    save_tensors(directory / SAFE, written.tensors(model), {})
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    description = {**written.write_config(model.config), "dtype": dtype}
    write_json(directory / "config.json", description)


def equal_of(model: nn.Module) -> Written:
    """The architecture of transformers that computes the same as a model of ours.

    Raises:
        ArgumentError: there is none; all settings that do not fit the nearest one are named.
    """
    unlike = {
        kind: written.unlike(model.config)
        for kind, written in WRITTEN.items()
        if written.model is type(model)
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
    return WRITTEN[nearest]
