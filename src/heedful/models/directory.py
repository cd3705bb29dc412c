"""Loading of models from directories and the hub, and writing of their configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heedful.configuration import Configuration, nearest
from heedful.errors import ArgumentError, RunError
from heedful.files import load_tensors, read_tensors, write_checked_json
from heedful.files.run_identity import check_saved, read_config, read_recipe
from heedful.files.sharded import load_sharded, newest, read_metadata
from heedful.models.bert import Bert, BertConfig
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.models.gpt import GPT, GPTConfig
from heedful.models.huggingface.checkpoints import is_heedful, load_meta_model, load_pretrained
from heedful.models.huggingface.hub import model_directory
from heedful.models.parameters import (
    assign_parameters,
    check_fit,
    on_meta_device,
    parameters_of,
    shapes_of,
)
from heedful.models.seq2seq import Seq2Seq, Seq2SeqConfig
from heedful.models.size import check_size
from heedful.processes import Processes

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
    """Load a model from a directory or from the Hugging Face hub, for evaluation.

    Args:
        path_or_name: a directory made by `heedful train`, a directory in Hugging Face format, or
            a name on the hub.
        checkpoint: the weights of a run to load: "best" (lowest validation loss) or "last".
        revision: the branch, tag or commit on the hub.
        allow_pickle: whether to read pickled weights (`.bin`) if there are no safetensors.
        dtype: the dtype of the parameters; default that of the file.

    Returns:
        the model in evaluation mode on the CPU. The output of its forward pass has `.logits` and
        `.hidden_states`.

    Raises:
        RunError: no such directory or name, an unsupported architecture, a missing or damaged
            file, or weights that do not fit their configuration (the error lists these weights).
        ArgumentError: an unknown checkpoint, or a revision of a local directory.
    """
    if checkpoint not in CHECKPOINTS:
        raise ArgumentError(f"checkpoint {checkpoint!r}", expected="'best' or 'last'")
    directory = model_directory(path_or_name, revision=revision, allow_pickle=allow_pickle)
    description = read_config(directory)
    if not is_heedful(description):
        return load_pretrained(directory, allow_pickle=allow_pickle, dtype=dtype)
    config, family = _parse(description, directory / "config.json")
    try:  # read first: training may replace both files
        last = latest_checkpoint(directory)
        latest = read_metadata(last) if last else {}
        read_recipe(directory)
    except RunError:  # the best weights can be used if the folder `state` is damaged
        if checkpoint == "last":
            raise
        last = latest = None
    path = last if last and checkpoint == "last" else directory / CHECKPOINTS[checkpoint]
    if path.is_dir():
        tensors = load_sharded(path, lambda _, shape: torch.zeros(shape), Processes())
        about = latest
    else:
        tensors, about = load_tensors(path)
    if about and latest is not None:  # `about` is empty for weights written by another program
        check_saved(path, about, latest, directory)
    if checkpoint == "last":
        prefix = "model."
        tensors = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    check_size(config, tensors, directory)
    model = on_meta_device(lambda: family(config))
    check_fit(shapes_of(parameters_of(model)), shapes_of(tensors), directory)
    return assign_parameters(model, lambda name: tensors[name].to(dtype, copy=True)).eval()


def latest_checkpoint(directory: Path) -> Path | None:
    """Return a run's latest checkpoint, a file or a directory of shards; None if there is none.

    Both exist if a process was killed just before it removed the older checkpoint.
    """
    paths = (newest(directory / SHARDED), directory / CHECKPOINTS["last"])
    existing = [path for path in paths if path is not None and path.exists()]
    return max(existing, key=lambda path: read_metadata(path).get("step", -1), default=None)


def meta_model(directory: Path, *, allow_pickle: bool = False) -> nn.Module:
    """Return a model without weights, on the meta device; arguments and errors as `load_model`."""
    description = read_config(directory)
    if not is_heedful(description):
        return load_meta_model(directory, allow_pickle=allow_pickle)
    config, family = _parse(description, directory / "config.json")
    weights = directory / CHECKPOINTS["best"]
    check_size(config, read_tensors(weights)[0] if weights.is_file() else None, directory)
    return on_meta_device(lambda: family(config))


def _parse(description: Any, source: Path) -> tuple[Any, Callable[[Any], nn.Module]]:
    """Return the configuration in a `config.json`, and the class of its model."""
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


def write_model_config(directory: Path, config: Configuration, **entries: Any) -> None:
    """Write a `config.json` for `load_model`, with further entries and a checksum."""
    family = next(name for name, (kind, _) in FAMILIES.items() if kind is type(config))
    about = {"model_type": family, "model": config.to_dict(), **entries}
    write_checked_json(directory / "config.json", about)


def read_model_config(directory: Path) -> Any:
    """Read the configuration that `write_model_config` wrote."""
    config, _ = _parse(read_config(directory), directory / "config.json")
    return config
