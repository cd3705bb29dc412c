"""What a run is continued from: weights, optimizer and progress, in one file or in parts.

Batches and dropout are functions of the seed, the step and how many sequences were read before, so
no generator needs saving.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.files import load_tensors, save_tensors, saving
from heedful.files.run_identity import RUN, check_belongs, said
from heedful.files.sharded import (
    about_tensors,
    forget_sharded,
    latest_of,
    load_sharded,
    save_sharded,
)
from heedful.models import parameters_of
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.models.parameters import check_fit, shapes_of
from heedful.processes import Processes
from heedful.train.metrics import Progress
from heedful.train.parallel import fill, is_sharded, whole


def save(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    here: Processes,
) -> None:
    """Write everything that continuing a run needs, whole or not at all; all processes call this.

    The first process writes it; all of them do, each its part, where the model is cut among them.
    """
    tensors = {}
    for name, parameter in parameters_of(model).items():
        tensors[f"model.{name}"] = parameter.detach()
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    about = dataclasses.asdict(progress) | _belonging(directory)
    file = directory / CHECKPOINTS["last"]
    if any(map(is_sharded, tensors.values())):
        save_sharded(directory / SHARDED, tensors, about, here)
        if here.is_first:
            with saving(file):
                file.unlink(missing_ok=True)
    elif here.is_first:
        save_tensors(file, tensors, about)
        forget_sharded(directory / SHARDED)


def save_weights(directory: Path, model: nn.Module, progress: Progress, here: Processes) -> None:
    """Write the weights, as those that are best; all processes call this, the first writes."""
    gathered = {}
    for name, parameter in parameters_of(model).items():
        tensor = whole(parameter.detach())  # one by one: all of them may not fit on the device
        if here.is_first:
            gathered[name] = tensor.cpu() if is_sharded(parameter) else tensor
    if here.is_first:
        about = {"step": progress.step, "validation_loss": progress.best} | _belonging(directory)
        save_tensors(directory / CHECKPOINTS["best"], gathered, about)


def _belonging(directory: Path) -> dict[str, str]:
    """The entry that says which run a file belongs to; none where no `config.json` names it."""
    run = said(directory, RUN)
    return {RUN: run} if run else {}


def latest(directory: Path) -> Path | None:
    """A run's checkpoint: a file, or the place of its parts; None where none was saved."""
    return latest_of(directory / CHECKPOINTS["last"], directory / SHARDED)


def restore(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, here: Processes
) -> Progress:
    """Put back what `save` wrote, with any number of processes.

    Raises:
        RunError: nothing was saved, or it does not fit this model.
    """
    path = latest(directory) or directory / CHECKPOINTS["last"]
    parameters = parameters_of(model)

    def like(name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor to read into, cut among processes where its parameter is."""
        parameter = parameters.get(_split(name)[1])
        if parameter is None or parameter.shape != shape:
            return torch.zeros(shape)
        return torch.zeros_like(parameter)

    if path.is_dir():
        tensors, about = load_sharded(path, like, here), about_tensors(path)
    else:
        tensors, about = load_tensors(path)
    about.pop(RUN, None)
    weights = {_split(name)[1]: t for name, t in tensors.items() if _split(name)[0] is None}
    check_fit(shapes_of(parameters), shapes_of(weights), path)
    for name, tensor in tensors.items():
        key, of = _split(name)
        if key is None:
            fill(parameters[of], tensor)
        else:
            optimizer.state[parameters[of]][key] = _cut_like(parameters[of], tensor)
    if about.keys() != {field.name for field in dataclasses.fields(Progress)}:
        raise RunError(
            f"{path} does not say how far the run is",
            cause="a file of another version of heedful",
            remedy="train again with --overwrite",
        )
    return Progress(**about)


def _split(name: str) -> tuple[str | None, str]:
    """Which state of the optimizer a tensor is, None for a weight, and of which parameter."""
    section, _, rest = name.partition(".")
    key, _, parameter = rest.partition(".")
    return (None, rest) if section == "model" else (key, parameter)


def _cut_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A state of the optimizer, cut among processes where its parameter is."""
    if tensor.shape != parameter.shape or is_sharded(tensor) or not is_sharded(parameter):
        return tensor.to(parameter.device)
    rows = torch.zeros_like(parameter)
    fill(rows, tensor)
    return rows


def check_of_run(directory: Path) -> None:
    """Refuse weights and a checkpoint of another run, by their headers alone; `RunError`."""
    for path in (directory / CHECKPOINTS["best"], latest(directory)):
        if path is None or not path.exists():
            continue
        if about := about_tensors(path):  # those of another program say nothing
            check_belongs(path, RUN, about.get(RUN), directory)


def saved_step(directory: Path) -> int | None:
    """The step of a run's checkpoint; None where none was saved."""
    path = latest(directory)
    step = about_tensors(path).get("step") if path is not None else None
    return step if isinstance(step, int) else None
