"""Services that draw the numbers of a run while it trains, each by its own package.

An adapter is a `Logger`. It runs in a process of its own (`follower.py`), so it may take its time,
and what it raises ends nobody's training.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from heedful.configuration import all_of
from heedful.errors import ArgumentError

FAILED = "failed: "  # how a line begins in which the process of a service says why it ends


class Drawn(NamedTuple):
    """The run that a service draws.

    `id` is the service's name for it, the same whenever the run goes on; `folder` is where a
    service may write; `recipe` all settings. `start` is the step from which the run goes on, and
    `has` the last one that the service is known to have, -1 where it has none.
    """

    name: str
    project: str
    id: str
    folder: Path
    recipe: Mapping[str, Any]
    start: int
    has: int


class Logger(Protocol):
    """What is told the numbers of a run, in the order of its steps.

    `has` is the last step that it has already and is not told again; `where` says where it can be
    looked at.
    """

    has: int
    where: str

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def flush(self) -> None:
        """Put what was taken where it outlives this process."""

    def close(self) -> None:
        """Finish."""


class TensorBoard:
    """Event files in the run's `logs/tensorboard`.

    Steps after `start` that are there are dropped by TensorBoard, and written again.
    """

    def __init__(self, run: Drawn) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / "tensorboard"
        self.where = f"in {folder}; `tensorboard --logdir {folder}` shows it"
        self.has = min(run.has, run.start)
        self._writer = EventFileWriter(str(folder))
        if run.has >= 0:  # torch's SummaryWriter has this as purge_step
            self._add(step=self.has + 1, session_log=SessionLog(status=SessionLog.START))
        else:
            self._add(step=0, summary=_as_text("recipe", json.dumps(run.recipe, indent=2)))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """A scalar for each number."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        self._add(step=step, summary=Summary(value=values))

    def flush(self) -> None:
        """To the disk."""
        self._writer.flush()

    def close(self) -> None:
        """To the disk, and no more."""
        self._writer.close()

    def _add(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), **event))


def _as_text(tag: str, text: str) -> Any:
    """A summary that TensorBoard shows among its texts, as Markdown."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    block = "\n".join(f"    {line}" for line in text.splitlines())
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype="DT_STRING", string_val=[block.encode()])
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


class WeightsAndBiases:
    """A run of Weights & Biases, offline where there is no login or no network."""

    def __init__(self, run: Drawn) -> None:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = {
            "project": run.project,
            "name": run.name,
            "id": run.id,
            "resume": "allow",
            "dir": run.folder,
            "config": dict(run.recipe),
            "settings": wandb.Settings(console="off", silent=True, init_timeout=30),
        }
        try:
            self._run = wandb.init(**given)
        except wandb.Error as error:
            wandb.teardown()  # or it says that the run's id is in use
            self._run = wandb.init(**given, mode="offline")
            why = f"not sent ({_first_sentence(error)}), but kept"
        else:
            why = "kept"
        self.has = max(run.has, self._run.step - 1)
        place = os.path.relpath(Path(self._run.dir).parent)
        self.where = self._run.url or f"{why} in {place}; `wandb sync {place}` sends it"

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """To the process that sends it; not held until the next step, as it else would be."""
        self._run.log(dict(numbers), step=step, commit=True)

    def flush(self) -> None:
        """Nothing: what was logged is with another process already."""

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


class Trackio:
    """A run in trackio's database on this machine, or where its own variables say."""

    def __init__(self, run: Drawn) -> None:
        import trackio

        self.where = f"in project {run.project}; `trackio show --project {run.project}` shows it"
        self._run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.id}",  # a run goes on by its name
            config=dict(run.recipe),
            resume="allow",
            embed=False,
        )
        self.has = max(run.has, getattr(self._run, "_next_step", 0) - 1)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """To the thread that writes it."""
        self._run.log(dict(numbers), step=step)

    def flush(self) -> None:
        """Nothing: what was logged is written within a second."""

    def close(self) -> None:
        """Wait until all is written."""
        self._run.finish()


# By what `--log` calls them, which is the name of the package too, and of the extra that brings it
SERVICES: dict[str, Callable[[Drawn], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def services_of(log: str | None) -> list[str]:
    """The names in `--log`, each once.

    >>> services_of("tensorboard, wandb"), services_of(None)
    (['tensorboard', 'wandb'], [])

    Raises:
        ArgumentError: a service that is not known.
    """
    given = (log or "").strip()
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in names if names or not given else [given]:  # commas alone name none
        if name not in SERVICES:
            raise ArgumentError(f"log = {name!r}", expected=all_of(name, SERVICES))
    return names


def check_services(log: str | None) -> None:
    """Refuse a service whose package is not installed.

    Raises:
        ArgumentError: such a one, or one that is not known.
    """
    for name in services_of(log):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise ArgumentError(
                f"--log {name} without the package {name}",
                remedy=f'pip install "heedful[{name}]"',
            )


def _first_sentence(error: Exception) -> str:
    return str(error).strip().splitlines()[0].split(". ")[0].rstrip(".")
