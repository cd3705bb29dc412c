"""A run's progress, and `metrics.jsonl`: a line for every step, validation and scoring of heads."""

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
from heedful.files import atomic_write, parse_json, save_errors
from heedful.files.checksums import digits
from heedful.files.run_identity import RUN, config_entry, foreign_file
from heedful.train.run_files import WATCHED

MAX_AVERAGED = 50  # maximum number of steps to average
LINE = re.compile(rb'(.*), "crc32": "([0-9a-f]{8})"\}')
Line = dict[str, Any]


@dataclasses.dataclass
class Progress:
    """A run's progress, which is saved in its checkpoint.

    `step` is the number of completed steps, `evaluated` the step of the last validation. `best` is
    the lowest validation loss (nats per token), `best_step` its step, and `waited` the number of
    validations since then. `watched` is the step at which the heads were last scored. `read` is the
    number of sequences that all processes together have read: the position in shuffled epochs.
    `metrics` is the checksum of the last line of `metrics.jsonl`.
    """

    step: int = 0
    evaluated: int = -1
    best: float = float("inf")
    best_step: int = -1
    waited: int = 0
    watched: int = -1
    read: int = 0
    metrics: int | None = None

    def covers(self, line: Mapping[str, Any]) -> bool:
        """Whether a line belongs to this progress; a resumed run writes all later lines again."""
        if "validation_loss" in line:
            return bool(line["step"] <= self.evaluated)
        return bool(line["step"] <= (self.watched if WATCHED in line else self.step))


def averaging_window(step: int) -> int:
    """Return the number of latest steps over which the displayed training loss is averaged.

    It is a tenth of `step`, the number of steps so far, but at most 50. So the mean follows the
    fast fall of the loss in the first steps.

    >>> averaging_window(3), averaging_window(100), averaging_window(5000)
    (1, 10, 50)
    """
    return min(MAX_AVERAGED, -(-step // 10))


class Metrics:
    """Writes `metrics.jsonl`, one JSON object per line.

    A step's `loss` is the loss on its batches, `mean_loss` an average (see `averaging_window`).
    The checksum `crc32` of a line covers the line and the previous line's checksum; the first line
    starts from the checksum of the run's identity. So lost lines and lines of other runs are
    detected. `is_truncated` is True if the line of the last step, validation or scoring is lost.

    Args:
        path: the file; lines after `progress` and incomplete lines are removed from it.
        progress: the progress from which the run continues.
        is_writer: whether this process writes the file; exactly one process does.
        callbacks: functions that are called with every line.

    Raises:
        RunError, SaveError: the file is damaged, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress,
        *,
        is_writer: bool = True,
        callbacks: Sequence[Callable[[Line], None]] = (),
    ) -> None:
        lines = [line for line in read_metrics(path) if progress.covers(line)]
        self.checksum, self._callbacks = _checksum_of_run(path), callbacks
        last_steps = {"loss": progress.step, "validation_loss": progress.evaluated}
        last_steps[WATCHED] = progress.watched
        self.is_truncated = not all(
            any(name in line and line["step"] == step for line in lines)
            for name, step in last_steps.items()
            if step > 0
        )
        losses = ((line["step"], line["loss"]) for line in lines if "loss" in line)
        self._losses = deque(losses, MAX_AVERAGED)
        self._path = path if is_writer else Path(os.devnull)
        content = "".join(map(self._encoded, lines)).encode()
        if not self.is_truncated and progress.metrics not in (None, self.checksum):
            raise foreign_file(path)
        if is_writer:
            with atomic_write(path) as file:
                file.write(content)
        with save_errors(path):
            self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def _encoded(self, line: Mapping[str, Any]) -> str:
        body = json.dumps(line)
        self.checksum = zlib.crc32(body.encode(), self.checksum)
        return f'{body[:-1]}, "crc32": "{digits(self.checksum)}"}}\n'

    def write_step(self, step: int, loss: float, rate: float) -> float:
        """Write the line of a step; return the mean loss of the latest steps."""
        self._losses.append((step, loss))
        latest = [loss for n, loss in self._losses if n > step - averaging_window(step)]
        mean = sum(latest) / len(latest)
        self.write(step=step, loss=loss, mean_loss=mean, rate=rate)
        return mean

    def write(self, **line: Any) -> None:
        """Write a line; raise a `SaveError` if the disk is full."""
        with save_errors(self._path):
            self._file.write(self._encoded(line))
        for callback in self._callbacks:
            callback(line)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a full disk, already reported by `write`
            self._file.close()


def read_metrics(path: Path) -> list[Line]:
    """Return the lines of a `metrics.jsonl`, without checksums; empty if the file is missing.

    An incomplete last line, which a killed process may leave, is ignored.

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
        parsed = _parse(body)
        if match is None or parsed is None or checksum != int(match[2], 16):
            raise RunError(
                f"line {number} of {path} is damaged, or a line before it is lost",
                cause="a damaged file, or one of another version of heedful",
                remedy="remove the file: training can be resumed without it",
            )
        lines.append(parsed)
    return lines


def _parse(body: bytes) -> Line | None:
    """Return a line; None if it is not a JSON object with a step."""
    try:
        line = parse_json(body)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def _checksum_of_run(path: Path) -> int:
    return zlib.crc32((config_entry(path.parent, RUN) or "").encode())
