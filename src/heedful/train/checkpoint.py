"""Checkpoints: weights, optimizer state and progress, in one file or in shards.

No random state is saved, because batches and dropout depend only on the seed, the step and the
number of sequences read before.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.files import load_tensors, read_checked_json, save_errors, save_tensors
from heedful.files.run_identity import CONTINUATION, RECIPE, RUN, check_saved, identity, mark_of
from heedful.files.sharded import load_sharded, read_metadata, remove_sharded, save_sharded
from heedful.models import parameters_of
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.models.directory import latest_checkpoint
from heedful.models.parameters import check_fit, shapes_of
from heedful.processes import Processes
from heedful.train.metrics import Progress
from heedful.train.parallel import copy_rows, full_tensor, is_sharded


def save(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    processes: Processes,
) -> None:
    """Write a checkpoint atomically; every process must call this.

    The first process writes the file. If the model is sharded, every process writes its shard.
    """
    tensors = {}
    for name, parameter in parameters_of(model).items():
        tensors[f"model.{name}"] = parameter.detach()
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    metadata = dataclasses.asdict(progress) | _run_entry(directory)
    file = directory / CHECKPOINTS["last"]
    if any(map(is_sharded, tensors.values())):
        save_sharded(directory / SHARDED, tensors, metadata, processes)
        if processes.is_first:
            with save_errors(file):
                file.unlink(missing_ok=True)
    elif processes.is_first:
        save_tensors(file, tensors, metadata)
        remove_sharded(directory / SHARDED)


def save_weights(
    directory: Path, model: nn.Module, progress: Progress, processes: Processes
) -> None:
    """Write the weights to `model.safetensors`. All processes must call this; the first writes."""
    gathered = {}
    for name, parameter in parameters_of(model).items():
        tensor = full_tensor(parameter.detach())  # one by one: the device may lack room for all
        if processes.is_first:
            gathered[name] = tensor.cpu() if is_sharded(parameter) else tensor
    if processes.is_first:
        entries = {"step": progress.step, "validation_loss": progress.best} | _run_entry(directory)
        save_tensors(directory / CHECKPOINTS["best"], gathered, entries)


def _run_entry(directory: Path) -> dict[str, str]:
    """Return metadata that identifies the run and its continuation, from the recipe if any."""
    path = directory / RECIPE
    recipe = read_checked_json(path) if path.is_file() else {}
    names = {RUN: recipe.get(RUN), CONTINUATION: (recipe.get(CONTINUATION) or [None])[0]}
    return {entry: name for entry, name in names.items() if name}


def load(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, processes: Processes
) -> Progress:
    """Load the checkpoint of a run into model and optimizer; return the run's progress.

    The number of processes may differ from that at the time of saving.

    Raises:
        RunError: the checkpoint is missing or damaged, or does not fit this model.
    """
    path = latest_checkpoint(directory) or directory / CHECKPOINTS["last"]
    parameters = parameters_of(model)

    def target_of(name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor to read into, sharded like its parameter if their shapes are equal."""
        parameter = parameters.get(_split(name)[1])
        if parameter is None or parameter.shape != shape:
            return torch.zeros(shape)
        return torch.zeros_like(parameter)

    if path.is_dir():
        tensors, metadata = load_sharded(path, target_of, processes), read_metadata(path)
    else:
        tensors, metadata = load_tensors(path)
    metadata = {name: metadata[name] for name in metadata.keys() - {RUN, CONTINUATION}}
    weights = {_split(name)[1]: t for name, t in tensors.items() if _split(name)[0] is None}
    check_fit(shapes_of(parameters), shapes_of(weights), path)
    for name, tensor in tensors.items():
        key, parameter = _split(name)[0], parameters[_split(name)[1]]
        if key is None:
            copy_rows(parameter, tensor)
        elif tensor.shape != parameter.shape or is_sharded(tensor) or not is_sharded(parameter):
            optimizer.state[parameter][key] = tensor.to(parameter.device)
        else:
            rows = optimizer.state[parameter][key] = torch.zeros_like(parameter)
            copy_rows(rows, tensor)
    if metadata.keys() != {field.name for field in dataclasses.fields(Progress)}:
        raise RunError(
            f"{path} lacks the progress of the run",
            cause="a file of another version of heedful",
            remedy="train again with --overwrite",
        )
    return Progress(**metadata)


def _split(name: str) -> tuple[str | None, str]:
    """Split a tensor's name into the optimizer state (None for a weight) and the parameter."""
    section, _, suffix = name.partition(".")
    key, _, parameter = suffix.partition(".")
    return (None, suffix) if section == "model" else (key, parameter)


def check_run_identity(directory: Path) -> None:
    """Raise a `RunError` unless the weights and the checkpoint in a directory belong to its run."""
    path = latest_checkpoint(directory) or directory / CHECKPOINTS["last"]
    latest, weights = saved_metadata(directory)
    check_saved(path, latest, latest, directory)
    if weights:  # files of other programs lack metadata
        check_saved(directory / CHECKPOINTS["best"], weights, latest, directory)


def new_continuation(directory: Path, settings: Any) -> list[Any]:
    """Return the recipe's entry for continuing a run with other settings."""
    marks = [mark_of(about) for about in saved_metadata(directory)]
    return [identity(marks, settings), *marks]


def saved_metadata(directory: Path) -> list[dict[str, Any]]:
    """Return the metadata of a run's latest checkpoint and best weights; empty without a file."""
    paths = latest_checkpoint(directory), directory / CHECKPOINTS["best"]
    return [read_metadata(path) if path and path.exists() else {} for path in paths]


def saved_step(directory: Path) -> int | None:
    """Return the step of a run's latest checkpoint; None if there is none."""
    step = saved_metadata(directory)[0].get("step")
    return step if isinstance(step, int) else None
