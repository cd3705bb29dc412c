"""A process that follows the `metrics.jsonl` of a run, and tells a service what it reads.

Whoever trains is never waited for and never waits: all it does is to write its lines, as always.
What a service lacks of the lines that are there is told first; so it has no gap after a kill, and
none where it was first asked for when the run went on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock

from heedful.files import read_checked_json, write_checked_json
from heedful.train.plan import LOGS, METRICS, RECIPE
from heedful.train.services import FAILED, SERVICES, Drawn, Logger

INTERVAL = 2.0  # seconds between looks at the file
LONGEST = 600.0  # seconds after the end of training, in which a service may still send
SHOWN = ("title", "preset", "text", "model", "train")  # of the recipe, as a run's configuration
# What services group by; other numbers keep their names
NAMES = {
    "loss": "train/loss",
    "mean_loss": "train/mean_loss",
    "rate": "train/learning_rate",
    "validation_loss": "validation/loss",
}


def main(directory: str, service: str, start: int) -> None:
    """Follow the run in a directory, which goes on from a step, until standard input ends.

    Standard output has a line that says where the service draws the run, and one where it fails.
    """
    said = _own_output()
    if hasattr(os, "nice"):
        os.nice(10)  # training goes first
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    try:
        follow(Path(directory), service, start, ended, lambda words: print(words, file=said))
    except Exception as error:  # any: a service raises what it likes
        print(FAILED + (" ".join(str(error).split()) or type(error).__name__), file=said)
        os._exit(1)  # without what a service does at an exit: it may wait for what it lacks


def _own_output() -> TextIO:
    """Standard output, for our lines only: what services print goes nowhere."""
    own = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    return own


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.buffer.read()  # until the other side closes it, or is killed
    ended.set()
    time.sleep(LONGEST)
    os._exit(1)


def follow(
    directory: Path,
    service: str,
    start: int,
    ended: threading.Event,
    tell: Callable[[str], None],
) -> None:
    """Tell a service the lines of a run, those that come too, until training has ended."""
    folder = directory / LOGS
    folder.mkdir(exist_ok=True)
    # One that still sends what was trained before is waited for
    with FileLock(folder / f".{service}.lock"):
        note = Note(folder / f"{service}.json")
        recipe = read_checked_json(directory / RECIPE)
        logger = SERVICES[service](
            Drawn(
                name=directory.resolve().name,
                project=recipe["train"]["log_project"],
                id=note.id,
                folder=folder,
                recipe={name: recipe[name] for name in SHOWN},
                start=start,
                has=note.step,
            )
        )
        try:
            tell(logger.where)
            _write(logger, directory / METRICS, ended, note)
        finally:
            logger.close()


class Note:
    """The service's name for a run, and the last step that it is known to have, in a file."""

    def __init__(self, path: Path) -> None:
        about = read_checked_json(path) if path.is_file() else {}
        self.path = path
        self.id: str = about.get("id") or uuid.uuid4().hex[:8]
        self.step: int = about.get("step", -1)
        self._write()  # before the service knows the run

    def reach(self, step: int) -> None:
        """Note that the service has this step."""
        if step != self.step:
            self.step = step
            self._write()

    def _write(self) -> None:
        write_checked_json(self.path, {"id": self.id, "step": self.step})


def _write(logger: Logger, path: Path, ended: threading.Event, note: Note) -> None:
    held: dict[str, float] = {}  # of the latest step, which a validation may add to
    step = written = logger.has

    def write() -> None:
        nonlocal held, written
        if held:
            logger.write(step, held)
            held, written = {}, step

    with path.open(encoding="utf-8") as file:
        for line in _lines(file, ended):
            if line is None:
                logger.flush()
                note.reach(written)
                continue
            at, numbers = numbers_of(line)
            if at <= logger.has:
                continue
            if at != step:
                write()
            step = at
            held.update(numbers)
    write()
    logger.flush()
    note.reach(written)


def _lines(file: TextIO, ended: threading.Event) -> Iterator[Mapping[str, Any] | None]:
    """The whole lines of a file that grows; None each time that there is no more for now."""
    part = ""
    while True:
        last = ended.is_set()  # before reading: what was written until then is read
        for text in file:
            part += text
            if part.endswith("\n"):
                whole, part = part, ""
                try:
                    yield json.loads(whole)
                except ValueError:  # damaged; training says so
                    continue
        yield None
        if last:
            return
        ended.wait(INTERVAL)


def numbers_of(line: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The step of a line of `metrics.jsonl`, and its numbers by the names that services show.

    Those of lists and objects inside are named by their places.

    >>> numbers_of({"step": 3, "loss": 2.5, "sink": [[0.5, 1]], "crc32": "00000000"})
    (3, {'train/loss': 2.5, 'sink/0/0': 0.5, 'sink/0/1': 1.0})
    """
    numbers: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        inside: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in inside:
            path = f"{name}/{key}" if name else NAMES.get(key, key)
            if isinstance(part, dict | list):
                add(path, part)
            elif isinstance(part, int | float) and not isinstance(part, bool):
                numbers[path] = float(part)

    add("", {key: value for key, value in line.items() if key != "step"})
    return int(line["step"]), numbers
