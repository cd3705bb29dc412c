"""How far a run is, and `metrics.jsonl`: a line for every step, validation and watched moment."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from heedful.errors import RunError
from heedful.files import replacing, saving
from heedful.files.checksums import digits
from heedful.files.run_identity import RUN, said
from heedful.train.run_files import WATCHED

MOST_AVERAGED = 50  # steps
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


def averaged(step: int) -> int:
    """Over how many steps, up to this one, the mean training loss goes that is shown.

    It is the latest tenth of them, so that it follows the early fall, and at most 50.

    >>> averaged(3), averaged(100), averaged(5000)
    (1, 10, 50)
    """
    return min(MOST_AVERAGED, -(-step // 10))


class Metrics:
    """Writes `metrics.jsonl`, one JSON object a line.

    A step's `loss` is that of its own batch, its `mean_loss` the one that is shown (`averaged`).
    `crc32` goes over the line and the checksum of the line before, before the first over the run's
    identity, so that a lost line, or those of another run, are noticed. `is_cut` is whether the
    last ones up to `progress` are lost.

    Args:
        path: the file. It is opened to go on from `progress`: lines of what came later, or cut
            short, are dropped.
        progress: how far the run is.
        is_writer: False in all but one of several processes, which have the same numbers.
        callbacks: called with every line that is written.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress,
        *,
        is_writer: bool = True,
        callbacks: Sequence[Callable[[Line], None]] = (),
    ) -> None:
        kept = [line for line in read_metrics(path) if progress.has(line)]
        self._checksum, self._callbacks = _checksum_of_run(path), callbacks
        last = {"loss": progress.step, "validation_loss": progress.evaluated}
        last[WATCHED] = progress.watched
        self.is_cut = not all(
            any(name in line and line["step"] == step for line in kept)
            for name, step in last.items()
            if step > 0
        )
        losses = ((line["step"], line["loss"]) for line in kept if "loss" in line)
        self._losses = deque(losses, MOST_AVERAGED)
        self._path = path if is_writer else Path(os.devnull)
        if is_writer:
            with replacing(path) as file:
                file.write("".join(map(self._encoded, kept)).encode())
        with saving(path):
            self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def _encoded(self, line: Mapping[str, Any]) -> str:
        body = json.dumps(line)
        self._checksum = zlib.crc32(body.encode(), self._checksum)
        return f'{body[:-1]}, "crc32": "{digits(self._checksum)}"}}\n'

    def write_step(self, step: int, loss: float, rate: float) -> float:
        """Add the line of a step; its mean loss, of those that are there."""
        self._losses.append((step, loss))
        latest = [loss for at, loss in self._losses if at > step - averaged(step)]
        mean = sum(latest) / len(latest)
        self.write(step=step, loss=loss, mean_loss=mean, rate=rate)
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
    """The lines of a `metrics.jsonl`, none where there is no file.

    A last line that was cut short is left out: that is what a kill leaves.

    Raises:
        RunError: a line is damaged, or lines before it are lost.
    """
    content = path.read_bytes() if path.is_file() else b""
    encoded = content.splitlines()
    lines: list[Line] = []
    checksum = _checksum_of_run(path)
    for number, line in enumerate(encoded, 1):
        match = LINE.fullmatch(line)
        if match is None and number == len(encoded) and not content.endswith(b"\n"):
            break
        body = match[1] + b"}" if match else line
        checksum = zlib.crc32(body, checksum)
        if match is None or checksum != int(match[2], 16):
            raise RunError(
                f"line {number} of {path} is not what was written, or one before it is lost",
                cause="a damaged file, or one of another version of heedful",
                remedy="remove the file: training needs none of it, and --resume goes on without",
            )
        lines.append(json.loads(body))
    return lines


def _checksum_of_run(path: Path) -> int:
    return zlib.crc32((said(path.parent, RUN) or "").encode())
