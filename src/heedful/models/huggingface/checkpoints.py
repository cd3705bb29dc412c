"""Loading of models from directories in Hugging Face format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, RunError
from heedful.files import read_json
from heedful.files.run_identity import read_config
from heedful.models.bert import Bert
from heedful.models.gpt import GPT
from heedful.models.huggingface import bert, gpt2, llama
from heedful.models.huggingface.config_fields import class_of
from heedful.models.huggingface.parameter_names import ParameterNames
from heedful.models.huggingface.tensor_files import mapped_tensors
from heedful.models.parameters import (
    assign_parameters,
    check_fit,
    on_meta_device,
    parameters_of,
    shapes_of,
)
from heedful.models.size import check_size


class Architecture(NamedTuple):
    """Conversion between a `model_type` of Hugging Face and a model class of heedful.

    classes: the supported classes of transformers. model: the model class of heedful. format: the
    module that converts `config.json` and parameter names, with the functions `unsupported`,
    `read_config`, `names`, `mismatches` and `write_config`.
    """

    classes: tuple[str, ...]
    model: Callable[[Any], nn.Module]
    format: Any


ARCHITECTURES = {
    "gpt2": Architecture(("GPT2LMHeadModel", "GPT2Model"), GPT, gpt2),
    "bert": Architecture(tuple(bert.HEADS), Bert, bert),
} | {kind: Architecture(family.classes, GPT, llama) for kind, family in llama.FAMILIES.items()}


def unsupported_config(description: Mapping[str, Any]) -> str | None:
    """Return the architecture in a `config.json` if heedful does not support it, else None.

    >>> unsupported_config({"model_type": "llama"}), unsupported_config({"model_type": "bloom"})
    (None, 'bloom')
    >>> unsupported_config({"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}})
    "llama with rope_type = 'yarn'"
    """
    kind, class_name = str(description.get("model_type")), class_of(description)
    architecture = ARCHITECTURES.get(kind)
    if architecture is None or class_name not in (None, *architecture.classes):
        return str(class_name or kind)
    settings = architecture.format.unsupported(description)
    return f"{class_name or kind} with {', '.join(settings)}" if settings else None


def load_pretrained(
    directory: Path, *, allow_pickle: bool = False, dtype: torch.dtype | None = None
) -> nn.Module:
    """Load a checkpoint in Hugging Face format into a model of heedful; see `load_model`.

    Weights are memory-mapped and copied one at a time.
    """
    architecture, config, tensors = _open(directory, allow_pickle, verify=True)
    model = on_meta_device(lambda: architecture.model(config))
    _set_parameters(model, architecture.format.names(config), tensors, directory, dtype)
    return model.eval()


def load_meta_model(directory: Path, *, allow_pickle: bool = False) -> nn.Module:
    """Return a checkpoint's model without weights, on the meta device; see `load_pretrained`.

    A configuration alone is enough.
    """
    architecture, config, _ = _open(directory, allow_pickle)
    return on_meta_device(lambda: architecture.model(config))


def _open(
    directory: Path, allow_pickle: bool, verify: bool = False
) -> tuple[Architecture, Any, dict[str, Tensor]]:
    """Return a checkpoint's architecture, its configuration, and its memory-mapped tensors."""
    name = unsupported_architecture(directory)
    if name is not None:
        classes = ", ".join(name for entry in ARCHITECTURES.values() for name in entry.classes)
        raise RunError(
            f"{directory} holds a model of the architecture {name}",
            expected=f"one of heedful's: {classes}",
            remedy="open it with `transformers` and record its attention with "
            "heedful.record(model), or use `heedful heads` and `heedful record`",
        )
    description = read_json(directory / "config.json")
    architecture = ARCHITECTURES[str(description["model_type"])]
    has_weights = any(
        file for name in ("*.safetensors", "pytorch*.bin") for file in directory.glob(name)
    )
    tensors = mapped_tensors(directory, allow_pickle, verify) if verify or has_weights else {}
    try:
        config = architecture.format.read_config(description, tensors)
    except (ArgumentError, TypeError, KeyError) as error:
        raise _config_error(directory, error) from error
    check_size(config, tensors or None, directory)
    return architecture, config, tensors


def _config_error(directory: Path, error: Exception) -> RunError:
    """Return the error for a `config.json` that does not describe a model."""
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return RunError(f"{directory / 'config.json'} does not describe a model: {reason}")


def stored_end_ids(directory: Path) -> frozenset[int]:
    """Return the ids that end a text: those of `generation_config.json`, else of `config.json`."""
    paths = (directory / name for name in ("generation_config.json", "config.json"))
    path = next((path for path in paths if path.exists()), None)
    content = None if path is None else read_json(path)  # None: a model that was made in Python
    end = content.get("eos_token_id") if isinstance(content, Mapping) else None
    return frozenset(id for id in (end if isinstance(end, list) else [end]) if isinstance(id, int))


def is_heedful(description: Any) -> bool:
    """Return whether a `config.json` is heedful's, by its `model_type`.

    A file without type and classes is damaged; it counts as heedful's, and fails to load.
    """
    if not isinstance(description, Mapping):
        return True
    has_type = "architectures" in description or "model_type" in description
    return not has_type or str(description.get("model_type")).startswith("heedful-")


def unsupported_architecture(directory: Path) -> str | None:
    """Return `unsupported_config` of a directory; None for a model that heedful wrote.

    Raises:
        RunError: there is no `config.json`, or it does not describe a model.
    """
    description = read_config(directory)
    if is_heedful(description):
        return None
    try:
        return unsupported_config(description)
    except (TypeError, ValueError, KeyError) as error:
        raise _config_error(directory, error) from error


def _set_parameters(
    model: nn.Module,
    names: ParameterNames,
    tensors: Mapping[str, Tensor],
    directory: Path,
    dtype: torch.dtype | None,
) -> None:
    entries = {name: names.entry(name) for name in parameters_of(model)}
    expected = {
        key: shape
        for name, parameter in parameters_of(model).items()
        for key, shape in entries[name].shapes(tuple(parameter.shape)).items()
    }
    keys = names.match(tensors.keys(), expected)
    stored = {full: tensors[key] for full, key in keys.items()}
    for copy, original in names.shared.items():
        if copy in expected or not {copy, original} <= stored.keys():
            continue
        if not torch.equal(stored.pop(copy), stored[original]):
            raise RunError(
                f"{copy} and {original} in {directory} differ",
                expected="equal tensors, because the model in config.json shares them",
                remedy='set "tie_word_embeddings": false in config.json if they should differ',
            )
    cause = "a config.json of another model than the weights"
    stored_type = _common_type(stored, directory)
    check_fit(expected, shapes_of(stored), directory, cause)

    def read(name: str) -> Tensor:
        tensor = entries[name].from_checkpoint(stored[key] for key in entries[name].names)
        return torch.empty(tensor.shape, dtype=dtype or stored_type).copy_(tensor)

    assign_parameters(model, read)


def _common_type(tensors: Mapping[str, Tensor], directory: Path) -> torch.dtype:
    """Return the dtype of the parameters; the widest if a checkpoint has several."""
    types = {tensor.dtype for tensor in tensors.values()}
    supported = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
    if not types <= supported:
        raise RunError(
            f"weights in {directory} of type {', '.join(str(kind) for kind in types - supported)}",
            expected="float32, float16 or bfloat16",
            cause="a quantised checkpoint",
            remedy="use a checkpoint that is not quantised",
        )
    return functools.reduce(torch.promote_types, types)
