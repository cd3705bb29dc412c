"""What a run is continued from: weights, optimizer and bookkeeping in one file, and metrics.

Batches and dropout are functions of the seed and the step, so no generator needs saving.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.files import load_tensors, replacing, save_tensors, saving
from heedful.models import load_parameters, parameters_of


@dataclasses.dataclass
class Progress:
    """How far a run is.

    `step` steps are done; `evaluated` is the step of the last validation; `best` the lowest
    validation loss (nats per token) and `best_step` where it was; `waited` how many validations
    have passed since.
    """

    step: int = 0
    evaluated: int = -1
    best: float = float("inf")
    best_step: int = -1
    waited: int = 0


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write everything that continuing needs, whole or not at all."""
    tensors = {f"model.{name}": tensor for name, tensor in parameters_of(model).items()}
    for name, parameter in parameters_of(model).items():
        for key, tensor in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = tensor
    save_tensors(path, tensors, dataclasses.asdict(progress))


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put back what `save` wrote; a `RunError` where it does not fit this model."""
    tensors, about = load_tensors(path)
    sections: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        section, _, rest = name.partition(".")
        sections.setdefault(section, {})[rest] = tensor
    load_parameters(model, sections["model"], path)
    parameters = parameters_of(model)
    for name, tensor in sections["optimizer"].items():
        key, _, parameter = name.partition(".")
        optimizer.state[parameters[parameter]][key] = tensor.to(parameters[parameter].device)
    try:
        return Progress(**about)
    except TypeError as error:
        raise RunError(
            f"{path} does not say how far the run is", cause="a file of another version of heedful"
        ) from error


MOST_AVERAGED = 50  # steps


def averaged(step: int) -> int:
    """Over how many steps, up to this one, the mean training loss goes that is shown.

    It is the latest tenth of them, so that it follows the early fall, and at most 50.

    >>> averaged(3), averaged(100), averaged(5000)
    (1, 10, 50)
    """
    return min(MOST_AVERAGED, -(-step // 10))


class Metrics:
    """`metrics.jsonl`: one JSON object a line, for every step and every validation.

    A step's `loss` is that of its own batch, its `mean_loss` the one that is shown (`averaged`).
    """

    def __init__(self, path: Path, step: int) -> None:
        """Open it to go on after `step`; lines of later steps, or cut short, are dropped."""
        kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
        with replacing(path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        self._losses = deque((line["loss"] for line in kept if "loss" in line), MOST_AVERAGED)
        self._path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write_step(self, step: int, loss: float, rate: float) -> float:
        """Add the line of a step; its mean loss."""
        self._losses.append(loss)
        latest = list(self._losses)[-averaged(step) :]
        mean = sum(latest) / len(latest)
        self.write(step=step, loss=loss, mean_loss=mean, rate=rate)
        return mean

    def write(self, **values: Any) -> None:
        """Add a line; a `SaveError` where the disk is full."""
        with saving(self._path):
            self._file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a full disk: what could not be written was refused before
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; a last one that was cut short is left out."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    metrics = []
    for i, line in enumerate(lines):
        try:
            metric = json.loads(line)
            metric["step"] + 0  # an object with a number
            metrics.append(metric)
        except (ValueError, TypeError, KeyError) as error:
            if i < len(lines) - 1:
                raise RunError(
                    f"line {i + 1} of {path} is no metric",
                    cause="a damaged file",
                    remedy="remove that line, or the file: training needs none of it",
                ) from error
    return metrics
