"""Models from directories in Hugging Face format.

To read another family, add it to `ARCHITECTURES` below: its class, its names, its configuration.
"""

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
from heedful.models.huggingface.parameter_names import Names
from heedful.models.huggingface.tensor_files import mapped_tensors
from heedful.models.parameters import (
    assign,
    check_fit,
    parameters_of,
    shapes_of,
    without_parameters,
)


class Architecture(NamedTuple):
    """How one `model_type` of Hugging Face becomes a model of ours, and ours one of theirs.

    classes: those of its classes whose parts ours has. model: makes our model from our
    configuration. format: the module that knows its `config.json` and the names of its parameters:
    `lacking`, `read_config`, `names`, `unlike` and `write_config`.
    """

    classes: tuple[str, ...]
    model: Callable[[Any], nn.Module]
    format: Any


ARCHITECTURES = {
    "gpt2": Architecture(("GPT2LMHeadModel", "GPT2Model"), GPT, gpt2),
    "bert": Architecture(tuple(bert.HEADS), Bert, bert),
} | {kind: Architecture(family.classes, GPT, llama) for kind, family in llama.FAMILIES.items()}


def foreign(description: Mapping[str, Any]) -> str | None:
    """What a `config.json` of Hugging Face describes where no model of ours is that; else None.

    >>> foreign({"model_type": "llama"}), foreign({"model_type": "bloom"})
    (None, 'bloom')
    >>> foreign({"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}})
    "llama with rope_type = 'yarn'"
    """
    kind, named = str(description.get("model_type")), bert.class_of(description)
    architecture = ARCHITECTURES.get(kind)
    if architecture is None or named not in (None, *architecture.classes):
        return str(named or kind)
    lacking = architecture.format.lacking(description)
    return f"{named or kind} with {', '.join(lacking)}" if lacking else None


def load_pretrained(
    directory: Path, *, allow_pickle: bool = False, dtype: torch.dtype | None = None
) -> nn.Module:
    """A model of ours with the weights of a checkpoint in Hugging Face format, as `load_model`.

    The weights are read by memory map, one after another, into memory of their own.
    """
    architecture, config, tensors = _described(directory, allow_pickle)
    model = without_parameters(lambda: architecture.model(config))
    _fill(model, architecture.format.names(config), tensors, directory, dtype)
    return model.eval()


def pretrained_shape(directory: Path, *, allow_pickle: bool = False) -> nn.Module:
    """The same model with shapes alone: its weights are not read; errors as `load_pretrained`."""
    architecture, config, _ = _described(directory, allow_pickle)
    return without_parameters(lambda: architecture.model(config))


def _described(directory: Path, allow_pickle: bool) -> tuple[Architecture, Any, dict[str, Tensor]]:
    """How a checkpoint becomes a model of ours, its configuration, and its tensors, mapped."""
    description = read_json(directory / "config.json")
    architecture = _architecture(description, directory)
    tensors = mapped_tensors(directory, allow_pickle)
    try:
        config = architecture.format.read_config(description, tensors)
    except (ArgumentError, TypeError, KeyError) as error:
        raise no_model(directory, error) from error
    return architecture, config, tensors


def no_model(directory: Path, error: Exception) -> RunError:
    """The error of a `config.json` that cannot be read as a model's."""
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return RunError(f"{directory / 'config.json'} does not describe a model: {reason}")


def is_ours(description: Any) -> bool:
    """Whether a `config.json` is heedful's; that of transformers names its class, or its type.

    So is a damaged one, which is refused where it is read.
    """
    if not isinstance(description, Mapping):
        return True
    is_named = "architectures" in description or "model_type" in description
    return not is_named or str(description.get("model_type")).startswith("heedful-")


def foreign_name(directory: Path) -> str | None:
    """As `foreign`, of a directory; None also of one that heedful wrote.

    A `RunError` where there is no `config.json`, or one that describes no model.
    """
    description = read_config(directory)
    return None if is_ours(description) else _foreign(description, directory)


def _foreign(description: Any, directory: Path) -> str | None:
    try:
        return foreign(description)
    except (TypeError, ValueError, KeyError) as error:
        raise no_model(directory, error) from error


def _architecture(description: Any, directory: Path) -> Architecture:
    described = description if isinstance(description, Mapping) else {}
    name = _foreign(described, directory)
    if name is not None:
        ours = ", ".join(name for known in ARCHITECTURES.values() for name in known.classes)
        raise RunError(
            f"{directory} holds a model of the architecture {name}",
            expected=f"one of ours: {ours}",
            remedy="open it with `transformers`, and see its attention with heedful.record(model), "
            "or with `heedful heads` and `heedful record`",
        )
    return ARCHITECTURES[str(described["model_type"])]


def _fill(
    model: nn.Module,
    names: Names,
    tensors: Mapping[str, Tensor],
    directory: Path,
    dtype: torch.dtype | None,
) -> None:
    entries = {ours: names.of(ours) for ours in parameters_of(model)}
    wanted = {
        name: shape
        for ours, parameter in parameters_of(model).items()
        for name, shape in entries[ours].shapes(tuple(parameter.shape)).items()
    }
    found = {full: tensors[name] for full, name in names.recognised(tensors.keys(), wanted).items()}
    for copy, original in names.shared.items():
        if copy in found and copy not in wanted and original in found:
            _check_shared(copy, original, found, directory)
            del found[copy]
    check_fit(
        wanted, shapes_of(found), directory, "a config.json of another model than the weights"
    )
    stored = _common_type(found, directory)

    def read(ours: str) -> Tensor:
        tensor = entries[ours].ours(found[name] for name in entries[ours].names)
        return torch.empty(tensor.shape, dtype=dtype or stored).copy_(tensor)

    assign(model, read)


def _check_shared(copy: str, original: str, found: Mapping[str, Tensor], directory: Path) -> None:
    if not torch.equal(found[copy], found[original]):
        raise RunError(
            f"{copy} and {original} in {directory} differ",
            expected="equal tensors, because config.json says that the model shares them",
            remedy='set "tie_word_embeddings": false in config.json if they are meant to differ',
        )


def _common_type(tensors: Mapping[str, Tensor], directory: Path) -> torch.dtype:
    """The type of the parameters; the wider one where a checkpoint mixes them."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    known = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
    if not kinds <= known:
        raise RunError(
            f"weights in {directory} of type {', '.join(str(kind) for kind in kinds - known)}",
            expected="float32, float16 or bfloat16",
            cause="a quantised checkpoint",
            remedy="take the one that was not quantised",
        )
    return functools.reduce(torch.promote_types, kinds)
