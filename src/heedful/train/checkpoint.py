"""What a run is continued from: weights, optimizer and bookkeeping in one file, and metrics.

Batches and dropout are functions of the seed and the step, so no generator needs saving.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import zlib
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.files import description, load_tensors, replacing, save_tensors, saving
from heedful.files.checksums import digits
from heedful.models import load_parameters, parameters_of
from heedful.models.configurations import CHECKPOINTS


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


def saved_step(directory: Path) -> int | None:
    """The step of a run's checkpoint; None where none was saved."""
    path = directory / CHECKPOINTS["last"]
    step = (description(path) or {}).get("step") if path.is_file() else None
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
    left out where lines of its steps were lost. `crc32` goes over the line and that of the line
    before, so that a line that is lost is missed.

    `latest` is the loss of the latest step, `mean` its mean loss and `lowest` the lowest so far;
    `lost` says, where lines were, what is lost.
    """

    def __init__(self, path: Path, step: int) -> None:
        """Open it to go on after `step`; lines of later steps, or cut short, are dropped."""
        lines, damage = _read(path)
        kept = [line for line in lines if line["step"] <= step] if step else []
        losses = [(line["step"], line["loss"]) for line in kept if "loss" in line]
        missing = sorted(set(range(1, step + 1)) - {step for step, _ in losses})
        self.lost = _told(path, missing) if missing or (step and damage) else None
        if self.lost and path.exists():
            shutil.copyfile(path, path.with_name(DAMAGED))
        self._checksum = 0
        with replacing(path) as temporary:
            temporary.write_text("".join(map(self._line, kept)), "utf-8")
        self._losses = deque(losses, MOST_AVERAGED)
        self.lowest = min((line["mean_loss"] for line in kept if "mean_loss" in line), default=INF)
        self.latest = self.mean = losses[-1][1] if losses else INF
        self._path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def _line(self, values: Mapping[str, Any]) -> str:
        body = json.dumps(values)
        self._checksum = zlib.crc32(body.encode(), self._checksum)
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
    metrics, damage, checksum = [], 0, 0
    for number, line in enumerate(lines, 1):
        found = LINE.fullmatch(line)
        body = found[1] + b"}" if found else line
        after = zlib.crc32(body, checksum)
        try:
            metric = json.loads(body)
            metric["step"] + 0  # an object with a number
            whole = int(found[2], 16) == after if found else not checksum and CHECKSUM not in line
        except (ValueError, TypeError, KeyError):
            whole, metric = False, None
        if metric is not None and whole:
            metrics.append(metric)
        elif metric is not None or number < len(lines) or content.endswith(b"\n"):
            damage = damage or number
        checksum = int(found[2], 16) if found else checksum
    return metrics, damage


def _told(path: Path, missing: list[int]) -> str:
    """What is said of lines that are lost."""
    what = "lines that are damaged"
    if missing:
        run = f"steps {missing[0]:,} to {missing[-1]:,}"
        what = f"no whole line of {len(missing):,} of the {run}"
    return (
        f"{path} has {what}; what it had is in {DAMAGED}. Training needs none of it; the mean "
        "loss goes over the steps that are there."
    )
