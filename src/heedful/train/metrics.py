"""How far a run is, and `metrics.jsonl`: a line for every step, validation and watched moment."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files import append, replacing, saving
from heedful.files.belonging import RUN, said
from heedful.files.checksums import digits
from heedful.train.paths import WATCHED

MOST_AVERAGED = 50  # steps
DAMAGED = "metrics.damaged.jsonl"
INF = float("inf")
LINE = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}')
Line = dict[str, Any]


@dataclasses.dataclass
class Progress:
    """How far a run is.

    `step` steps are done; `evaluated` is the step of the last validation; `best` the lowest
    validation loss (nats per token) and `best_step` where it was; `waited` how many validations
    have passed since; `watched` the step at which the heads were last looked at; `read` how many
    sequences all processes have read, which is the place in a shuffled pass.
    """

    step: int = 0
    evaluated: int = -1
    best: float = INF
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
        validated, watched = (
            {line["step"] for line in lines if name in line} | {-1}
            for name in ("validation_loss", WATCHED)
        )
        return self.evaluated in validated and self.watched in watched


def averaged(step: int) -> int:
    """Over how many steps, up to this one, the mean training loss goes that is shown.

    It is the latest tenth of them, so that it follows the early fall, and at most 50.

    >>> averaged(3), averaged(100), averaged(5000)
    (1, 10, 50)
    """
    return min(MOST_AVERAGED, -(-step // 10))


class Metrics:
    """Writes `metrics.jsonl`, one JSON object a line.

    A step's `loss` is that of its own batch, its `mean_loss` the one that is shown (`averaged`),
    left out where lines of its steps were lost. `crc32` goes over the line, the run's identity and
    the checksum of the line before, so that a lost line, or another run's, is noticed.

    `latest` is the loss of the latest step, `mean` its mean loss and `lowest` the lowest so far;
    `lost` describes lines that were lost, if there are any.

    Args:
        path: the file. It is opened to go on from `progress`: lines of what came later, or cut
            short, are dropped.
        progress: how far the run is.
        is_writer: False in all but one of several processes, which have the same numbers.
        callbacks: called with every line that is written.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress,
        *,
        is_writer: bool = True,
        callbacks: Sequence[Callable[[Line], None]] = (),
    ) -> None:
        (lines, damage), step = _read(path), progress.step
        kept = [line for line in lines if progress.has(line)]
        losses = [(line["step"], line["loss"]) for line in kept if "loss" in line]
        missing = sorted(set(range(1, step + 1)) - {step for step, _ in losses})
        is_cut = not progress.is_last_of(kept)
        self.lost = _lost(path, missing) if missing or is_cut or (step and damage) else None
        self._run, self._checksum, self._callbacks = _run(path), 0, callbacks
        if is_writer:
            if self.lost and path.exists():
                with path.open("rb") as old, replacing(path.with_name(DAMAGED)) as file:
                    shutil.copyfileobj(old, file)
            with replacing(path) as file:
                file.write("".join(map(self._encoded, kept)).encode())
        self._losses = deque(losses, MOST_AVERAGED)
        self.lowest = min((line["mean_loss"] for line in kept if "mean_loss" in line), default=INF)
        self.latest = self.mean = losses[-1][1] if losses else INF
        self._path = path if is_writer else Path(os.devnull)
        self._file = append(self._path)

    def _encoded(self, line: Mapping[str, Any]) -> str:
        body = json.dumps(line)
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

    def write(self, **line: Any) -> None:
        """Add a line; a `SaveError` where the disk is full."""
        with saving(self._path):
            self._file.write(self._encoded(line))
        for callback in self._callbacks:
            callback(line)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a full disk: what could not be written was refused before
            self._file.close()


def read_metrics(path: Path) -> list[Line]:
    """The lines of a `metrics.jsonl`; a last one that was cut short is left out.

    Raises:
        RunError: a line is damaged, or lines before it are lost.
    """
    lines, damage = _read(path)
    if damage:
        raise RunError(
            f"line {damage} of {path} is not what was written, or one before it is lost",
            cause="a damaged file, or one of another version of heedful",
            remedy="remove the file: training needs none of it, and --resume mends it",
        )
    return lines


def lines_of(path: Path) -> list[Line]:
    """The whole lines of a `metrics.jsonl`, whatever became of the others."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Line], int]:
    """The whole lines, without their checksums, and the number of the first damaged one, or 0.

    A last line that was cut short is no damage, but what a kill leaves.
    """
    content = path.read_bytes() if path.is_file() else b""
    encoded = content.splitlines()
    lines, damage, checksum, run = list[Line](), 0, 0, _run(path)
    for number, line in enumerate(encoded, 1):
        match = LINE.fullmatch(line)
        body, written = (match[1] + b"}", int(match[2], 16)) if match else (line, -1)
        is_intact = zlib.crc32(body, zlib.crc32(run, checksum)) == written
        if is_intact:
            lines.append(json.loads(body))
        elif match or number < len(encoded) or content.endswith(b"\n"):
            damage = damage or number
        checksum = written if match else checksum
    return lines, damage


def _run(path: Path) -> bytes:
    """The identity of the run of a `metrics.jsonl`; empty where no `config.json` names it."""
    return (said(path.parent, RUN) or "").encode()


def _lost(path: Path, missing: list[int]) -> str:
    """The report of lines that are lost."""
    what = "lines that are damaged, or lost some"
    if missing:
        steps = f"steps {missing[0]:,} to {missing[-1]:,}"
        what = f"no whole line of {len(missing):,} of the {steps}"
    return (
        f"{path} has {what}; what it had is in {DAMAGED}. Training needs none of it; the mean "
        "loss goes over the steps that are there."
    )
