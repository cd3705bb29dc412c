"""What a run is continued from: weights, optimizer and bookkeeping in one file, and metrics.

Batches and dropout are functions of the seed, the step and how many sequences were read before, so
no generator needs saving.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.files import append, load_tensors, replacing, save_tensors, saving
from heedful.files.belonging import RUN, check_belongs, said
from heedful.files.checksums import digits
from heedful.files.sharded import (
    about_sharded,
    about_tensors,
    forget_sharded,
    latest_of,
    load_sharded,
    save_sharded,
)
from heedful.models import parameters_of
from heedful.models.configurations import CHECKPOINTS, SHARDED
from heedful.models.named_parameters import check_fit, shapes_of
from heedful.processes import Processes
from heedful.train.plan import WATCHED
from heedful.train.shards import fill, is_sharded, whole


@dataclasses.dataclass
class Progress:
    """How far a run is.

    `step` steps are done; `evaluated` is the step of the last validation; `best` the lowest
    validation loss (nats per token) and `best_step` where it was; `waited` how many validations
    have passed since; `watched` the step at which the heads were last looked at; `read` how many
    sequences all processes have read, which is the place in a shuffled pass, or -1 where a
    checkpoint of an older version does not say.
    """

    step: int = 0
    evaluated: int = -1
    best: float = float("inf")
    best_step: int = -1
    waited: int = 0
    watched: int = -1
    read: int = 0

    def has(self, line: Mapping[str, Any]) -> bool:
        """Whether a line of the metrics is of what was done by then; what comes after is redone."""
        if "validation_loss" in line:
            return bool(line["step"] <= self.evaluated)
        return bool(line["step"] <= (self.watched if WATCHED in line else self.step))

    def is_last_of(self, lines: Sequence[Mapping[str, Any]]) -> bool:
        """Whether lines of the metrics have the last validation and the last look that were."""
        found = [
            {line["step"] for line in lines if name in line} | {-1}
            for name in ("validation_loss", WATCHED)
        ]
        return self.evaluated in found[0] and self.watched in found[1]


def save(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    here: Processes,
) -> None:
    """Write everything that continuing a run needs, whole or not at all.

    The first process writes it; all of them do, each its part, where the model is cut among them.
    """
    tensors = {f"model.{name}": tensor for name, tensor in parameters_of(model).items()}
    for name, parameter in parameters_of(model).items():
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    about = dataclasses.asdict(progress) | of_run(directory)
    if any(map(is_sharded, tensors.values())):
        save_sharded(directory / SHARDED, tensors, about, here)
        if here.is_first:
            with saving(directory):
                (directory / CHECKPOINTS["last"]).unlink(missing_ok=True)
    elif here.is_first:
        save_tensors(directory / CHECKPOINTS["last"], tensors, about)
        forget_sharded(directory / SHARDED)


def save_weights(directory: Path, model: nn.Module, progress: Progress, here: Processes) -> None:
    """Write the weights, as those that are best, whole or not at all, by the first process."""
    about = {"step": progress.step, "validation_loss": progress.best}
    tensors = {}
    for name, parameter in parameters_of(model).items():
        tensor = whole(parameter.detach())  # one by one: all of them may not fit on the device
        if here.is_first:
            tensors[name] = tensor.cpu() if is_sharded(parameter) else tensor
    if here.is_first:
        save_tensors(directory / CHECKPOINTS["best"], tensors, about | of_run(directory))


def of_run(directory: Path) -> dict[str, str]:
    """What a file says of the run that it belongs to; nothing in one of an older version."""
    run = said(directory, RUN)
    return {RUN: run} if run else {}


def latest(directory: Path) -> Path | None:
    """Where a run's checkpoint is: a file, or the place of its parts; None where none was saved."""
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

    def place_for(name: str, shape: tuple[int, ...]) -> Tensor:
        like = parameters.get(_parts(name)[2])
        return torch.zeros(shape) if like is None or like.shape != shape else torch.zeros_like(like)

    if path.is_dir():
        tensors, about = load_sharded(path, place_for, here), about_sharded(path)
    else:
        tensors, about = load_tensors(path)
    about.pop(RUN, None)
    found = {_parts(name): tensor for name, tensor in tensors.items()}
    weights = {name: tensor for (section, _, name), tensor in found.items() if section == "model"}
    check_fit(shapes_of(parameters), shapes_of(weights), path)
    for (section, key, name), tensor in found.items():
        parameter = parameters[name]
        if section == "model":
            fill(parameter, tensor)
        else:
            optimizer.state[parameter][key] = _kept_as(parameter, tensor)
    try:
        return Progress(**{"read": -1} | about)
    except TypeError as error:
        raise RunError(
            f"{path} does not say how far the run is", cause="a file of another version of heedful"
        ) from error


def _parts(name: str) -> tuple[str, str, str]:
    """The section of a tensor's name, what state of the optimizer it is, and of which parameter."""
    section, _, rest = name.partition(".")
    if section == "model":
        return section, "", rest
    key, _, parameter = rest.partition(".")
    return section, key, parameter


def _kept_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A state of the optimizer, cut among processes where its parameter is."""
    if tensor.shape != parameter.shape or is_sharded(tensor) or not is_sharded(parameter):
        return tensor.to(parameter.device)
    kept = torch.zeros_like(parameter)
    fill(kept, tensor)
    return kept


def check_of_run(directory: Path) -> None:
    """Refuse weights and a checkpoint of another run, by their headers alone; `RunError`."""
    for path in (directory / CHECKPOINTS["best"], latest(directory)):
        if path is None or not path.exists():
            continue
        about = about_tensors(path)
        if about:  # those of another program say nothing
            check_belongs(path, RUN, about.get(RUN), directory)


def saved_step(directory: Path) -> int | None:
    """The step of a run's checkpoint; None where none was saved."""
    path = latest(directory)
    step = about_tensors(path).get("step") if path is not None else None
    return step if isinstance(step, int) else None


MOST_AVERAGED = 50  # steps
DAMAGED = "metrics.damaged.jsonl"
INF = float("inf")
CHECKSUM = b"crc32"
LINE = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}')


def averaged(step: int) -> int:
    """Over how many steps, up to this one, the mean training loss goes that is shown.

    It is the latest tenth of them, so that it follows the early fall, and at most 50.

    >>> averaged(3), averaged(100), averaged(5000)
    (1, 10, 50)
    """
    return min(MOST_AVERAGED, -(-step // 10))


class Metrics:
    """`metrics.jsonl`: one JSON object a line, for every step and every validation.

    A step's `loss` is that of its own batch, its `mean_loss` the one that is shown (`averaged`),
    left out where lines of its steps were lost. `crc32` goes over the line, what the run is called,
    and that of the line before, so that a line that is lost, or another run's, is missed.

    `latest` is the loss of the latest step, `mean` its mean loss and `lowest` the lowest so far;
    `lost` says, where lines were, what is lost.
    """

    def __init__(self, path: Path, progress: Progress, *, is_writer: bool = True) -> None:
        """Open it to go on from there; lines of what came later, or cut short, are dropped.

        Where several processes train, one is the writer, and the others have the same numbers.
        """
        (lines, damage), step = _read(path), progress.step
        kept = [line for line in lines if progress.has(line)]
        losses = [(line["step"], line["loss"]) for line in kept if "loss" in line]
        missing = sorted(set(range(1, step + 1)) - {step for step, _ in losses})
        cut = not progress.is_last_of(kept)
        self.lost = _told(path, missing) if missing or cut or (step and damage) else None
        self._run, self._checksum = _run(path), 0
        if is_writer:
            if self.lost and path.exists():
                with path.open("rb") as old, replacing(path.with_name(DAMAGED)) as file:
                    shutil.copyfileobj(old, file)
            with replacing(path) as file:
                file.write("".join(map(self._line, kept)).encode())
        self._losses = deque(losses, MOST_AVERAGED)
        self.lowest = min((line["mean_loss"] for line in kept if "mean_loss" in line), default=INF)
        self.latest = self.mean = losses[-1][1] if losses else INF
        self._path = path if is_writer else Path(os.devnull)
        self._file = append(self._path)

    def _line(self, values: Mapping[str, Any]) -> str:
        body = json.dumps(values)
        self._checksum = zlib.crc32(body.encode(), zlib.crc32(self._run, self._checksum))
        return f'{body[:-1]}, "crc32": "{digits(self._checksum)}"}}\n'

    def write_step(self, step: int, loss: float, rate: float) -> float:
        """Add the line of a step; its mean loss, of those that are there where some were lost."""
        self._losses.append((step, loss))
        latest = [loss for at, loss in self._losses if at > step - averaged(step)]
        mean = sum(latest) / len(latest)
        self.latest, self.mean = loss, mean
        if len(latest) == averaged(step):
            self.lowest = min(self.lowest, mean)
            self.write(step=step, loss=loss, mean_loss=mean, rate=rate)
        else:
            self.write(step=step, loss=loss, rate=rate)
        return mean

    def write(self, **values: Any) -> None:
        """Add a line; a `SaveError` where the disk is full."""
        with saving(self._path):
            self._file.write(self._line(values))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a full disk: what could not be written was refused before
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; a last one that was cut short is left out.

    Raises:
        RunError: a line is damaged, or lines before it are lost.
    """
    metrics, damage = _read(path)
    if damage:
        raise RunError(
            f"line {damage} of {path} is not what was written, or one before it is lost",
            cause="a damaged file",
            remedy="remove the file: training needs none of it, and --resume mends it",
        )
    return metrics


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines, without their checksums, and the number of the first damaged one, or 0.

    A last line that was cut short is no damage, but what a kill leaves.
    Lines of older versions have no checksum, and stand before those that have one.
    """
    content = path.read_bytes() if path.is_file() else b""
    lines = content.splitlines()
    metrics, damage, checksum, run = [], 0, 0, _run(path)
    for number, line in enumerate(lines, 1):
        found = LINE.fullmatch(line)
        body = found[1] + b"}" if found else line
        after = zlib.crc32(body, zlib.crc32(run, checksum))
        try:
            metric = json.loads(body)
            metric["step"] + 0  # an object with a number
            older = not (checksum or run) and CHECKSUM not in line
            whole = int(found[2], 16) == after if found else older
        except (ValueError, TypeError, KeyError):
            whole, metric = False, None
        if metric is not None and whole:
            metrics.append(metric)
        elif metric is not None or number < len(lines) or content.endswith(b"\n"):
            damage = damage or number
        checksum = int(found[2], 16) if found else checksum
    return metrics, damage


def _run(path: Path) -> bytes:
    """What the run of a `metrics.jsonl` is called; nothing in one of an older version."""
    return (said(path.parent, RUN) or "").encode()


def _told(path: Path, missing: list[int]) -> str:
    """What is said of lines that are lost."""
    what = "lines that are damaged, or lost some"
    if missing:
        run = f"steps {missing[0]:,} to {missing[-1]:,}"
        what = f"no whole line of {len(missing):,} of the {run}"
    return (
        f"{path} has {what}; what it had is in {DAMAGED}. Training needs none of it; the mean "
        "loss goes over the steps that are there."
    )
