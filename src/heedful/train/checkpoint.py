"""What a run is continued from: weights, optimizer and progress, in one file.

Batches and dropout are functions of the seed, the step and how many sequences were read before, so
no generator needs saving.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.files import description, load_tensors, save_tensors
from heedful.files.belonging import RUN, check_belongs, said
from heedful.models import parameters_of
from heedful.models.configurations import CHECKPOINTS
from heedful.models.named_parameters import check_fit, shapes_of
from heedful.processes import Processes
from heedful.train.metrics import Progress
from heedful.train.sharding import fill, is_sharded, whole


def save(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    here: Processes,
) -> None:
    """Write everything that continuing a run needs; all processes call this, the first writes."""
    tensors = {}
    for name, parameter in parameters_of(model).items():
        tensors[f"model.{name}"] = parameter.detach()
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    _write(directory, "last", tensors, dataclasses.asdict(progress), here)


def save_weights(directory: Path, model: nn.Module, progress: Progress, here: Processes) -> None:
    """Write the weights, as those that are best; all processes call this, the first writes."""
    tensors = {name: tensor.detach() for name, tensor in parameters_of(model).items()}
    about = {"step": progress.step, "validation_loss": progress.best}
    _write(directory, "best", tensors, about, here)


def _write(
    directory: Path,
    checkpoint: str,
    tensors: Mapping[str, Tensor],
    about: Mapping[str, object],
    here: Processes,
) -> None:
    """Write a checkpoint; tensors that are cut are gathered by the first process, on its CPU."""
    gathered = {}
    for name, tensor in tensors.items():
        full = whole(tensor)  # one after the other: all of them may not fit on the device
        if here.is_first:
            gathered[name] = full.cpu() if is_sharded(tensor) else full
    if here.is_first:
        run = said(directory, RUN)
        belonging = {RUN: run} if run else {}
        save_tensors(directory / CHECKPOINTS[checkpoint], gathered, {**about, **belonging})


def restore(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put back what `save` wrote, with any number of processes.

    Raises:
        RunError: nothing was saved, or it does not fit this model.
    """
    path = directory / CHECKPOINTS["last"]
    tensors, about = load_tensors(path)
    about.pop(RUN, None)
    parameters = parameters_of(model)
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    check_fit(shapes_of(parameters), shapes_of(weights), path)
    for name, tensor in tensors.items():
        section, _, rest = name.partition(".")
        if section == "model":
            fill(parameters[rest], tensor)
        else:
            key, _, of = rest.partition(".")
            optimizer.state[parameters[of]][key] = _cut_like(parameters[of], tensor)
    if about.keys() != {field.name for field in dataclasses.fields(Progress)}:
        raise RunError(
            f"{path} does not say how far the run is",
            cause="a file of another version of heedful",
            remedy="train again with --overwrite",
        )
    return Progress(**about)


def _cut_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A state of the optimizer, cut among processes where its parameter is."""
    if tensor.shape != parameter.shape or not is_sharded(parameter):
        return tensor.to(parameter.device)
    rows = torch.zeros_like(parameter)
    fill(rows, tensor)
    return rows


def check_of_run(directory: Path) -> None:
    """Refuse weights and a checkpoint of another run, by their headers alone; `RunError`."""
    for path in (directory / name for name in CHECKPOINTS.values()):
        about = description(path) if path.exists() else None
        if about:  # those of another program say nothing
            check_belongs(path, RUN, about.get(RUN), directory)


def saved_step(directory: Path) -> int | None:
    """The step of a run's checkpoint; None where none was saved."""
    path = directory / CHECKPOINTS["last"]
    step = (description(path) or {}).get("step") if path.is_file() else None
    return step if isinstance(step, int) else None
