"""Services that draw a run while it trains: each is called with every line of `metrics.jsonl`.

One that raises an error is reported in a line, and training goes on without it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from heedful.configuration import all_of
from heedful.errors import ArgumentError
from heedful.files import read_checked_json, write_checked_json
from heedful.train.metrics import lines_of
from heedful.train.paths import LOGS, METRICS
from heedful.train.settings import Recipe

# What services group by; other numbers keep their names
NAMES = {
    "loss": "train/loss",
    "mean_loss": "train/mean_loss",
    "rate": "train/learning_rate",
    "validation_loss": "validation/loss",
}


class Service(NamedTuple):
    """A service that draws one run.

    `log` takes the numbers of a step by their names, and the step; `finish` waits until all is
    written or sent; `where` says where the run can be seen; `step` is the first that it lacks.
    """

    log: Callable[[dict[str, float], int], object]
    finish: Callable[[], object]
    where: str
    step: int = 0


def tensorboard(folder: Path, recipe: Recipe, name: str, id: str) -> Service:
    """Event files in the run's `logs/tensorboard`, which replace those of an earlier start."""
    from torch.utils.tensorboard import SummaryWriter

    folder = folder / "tensorboard"
    writer = SummaryWriter(str(folder), purge_step=0 if folder.exists() else None)
    writer.add_text("recipe", f"```json\n{json.dumps(recipe.to_dict(), indent=2)}\n```", 0)

    def log(numbers: dict[str, float], step: int) -> None:
        for tag, number in numbers.items():
            writer.add_scalar(tag, number, step)

    return Service(log, writer.close, f"in {folder}; `tensorboard --logdir {folder}` shows it")


def wandb(folder: Path, recipe: Recipe, name: str, id: str) -> Service:
    """A run of Weights & Biases, offline where there is no login or no network."""
    import wandb

    project, settings = recipe.train.log_project, wandb.Settings(console="off", silent=True)
    about: dict[str, Any] = {"project": project, "name": name, "id": id, "resume": "allow"}
    about |= {"dir": folder, "config": recipe.to_dict(), "settings": settings}
    try:
        run, why = wandb.init(**about), "kept"
    except wandb.Error as error:
        wandb.teardown()  # or it reports that the run's id is in use
        run = wandb.init(**about, mode="offline")
        why = f"not sent ({str(error).strip().splitlines()[0]}), but kept"
    place = os.path.relpath(Path(run.dir).parent)
    where = run.url or f"{why} in {place}; `wandb sync {place}` sends it"
    return Service(run.log, run.finish, where, run.step)


def trackio(folder: Path, recipe: Recipe, name: str, id: str) -> Service:
    """A run in trackio's database on this machine, or where its own variables say."""
    import trackio

    project, known = recipe.train.log_project, f"{name}-{id}"  # a run goes on by its name
    run = trackio.init(
        project=project, name=known, config=recipe.to_dict(), resume="allow", embed=False
    )
    where = f"in project {project}; `trackio show --project {project}` shows it"
    return Service(run.log, run.finish, where, getattr(run, "_next_step", 0))


# By what `--log` calls them, which is the name of the package too, and of the extra that brings it
SERVICES: dict[str, Callable[[Path, Recipe, str, str], Service]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
}


class Logs:
    """The services of a recipe's `--log`, for the run in a directory."""

    def __init__(self, directory: Path, recipe: Recipe) -> None:
        self._directory, self._recipe = directory, recipe
        self._waiting, self._notices = services_of(recipe.train.log), list[str]()
        self._services: dict[str, Service] = {}

    def begin(self) -> None:
        """Start the services, if they are not, and send them the lines that they lack."""
        while self._waiting:
            name, folder = self._waiting.pop(0), self._directory / LOGS
            with self._without_if_failing(name), redirect_stdout(io.StringIO()):
                folder.mkdir(exist_ok=True)
                title = self._directory.resolve().name
                service = SERVICES[name](folder, self._recipe, title, _id(folder / "run.json"))
                self._notices.append(f"{name}: {service.where}")
                _send(service, lines_of(self._directory / METRICS))
                self._services[name] = service

    def log(self, line: Mapping[str, Any]) -> None:
        """Send a line of the metrics to each service."""
        for name, service in list(self._services.items()):
            with self._without_if_failing(name):
                _send(service, [line])

    def end(self) -> None:
        """Wait until each service has written or sent what it has."""
        while self._services:
            name, service = self._services.popitem()
            with self._without_if_failing(name), redirect_stdout(io.StringIO()):
                service.finish()

    def notices(self) -> Iterator[str]:
        """What there is to report since the last call, a sentence each."""
        while self._notices:
            yield self._notices.pop(0)

    @contextmanager
    def _without_if_failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # any: a service raises what it likes
            self._services.pop(name, None)
            why = " ".join(str(error).split()) or type(error).__name__
            self._notices.append(f"{name}: {why}; training goes on without it.")


def _id(path: Path) -> str:
    """The name of a run for services: random, and kept in a file, as it is the same in each."""
    if not path.is_file():
        write_checked_json(path, {"id": uuid.uuid4().hex[:8]})
    return str(read_checked_json(path)["id"])


def _send(service: Service, lines: Iterable[Mapping[str, Any]]) -> None:
    for line in lines:
        if line["step"] >= service.step:
            service.log(numbers_of(line), line["step"])


def numbers_of(line: Mapping[str, Any], name: str = "") -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl`, by the names that services show.

    Those of lists and objects inside are named by their places.

    >>> numbers_of({"step": 3, "loss": 2.5, "sink": [[0.5, 1]]})
    {'train/loss': 2.5, 'sink/0/0': 0.5, 'sink/0/1': 1.0}
    """
    numbers: dict[str, float] = {}
    for key, value in line.items():
        path = f"{name}/{key}" if name else NAMES.get(key, key)
        if isinstance(value, dict | list):
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            numbers |= numbers_of({str(place): part for place, part in inside}, path)
        elif isinstance(value, int | float) and path != "step":
            numbers[path] = float(value)
    return numbers


def services_of(log: str | None) -> list[str]:
    """The names in `--log`, each once.

    >>> services_of("tensorboard, wandb"), services_of(None)
    (['tensorboard', 'wandb'], [])

    Raises:
        ArgumentError: an unknown service.
    """
    names = [name.strip() for name in log.split(",")] if log and log.strip() else []
    for name in names:
        if name not in SERVICES:
            raise ArgumentError(f"log = {name!r}", expected=all_of(name, SERVICES))
    return list(dict.fromkeys(names))


def check_services(log: str | None) -> None:
    """Refuse a service whose package is not installed, or one that is not known.

    Raises:
        ArgumentError: such a service.
    """
    for name in services_of(log):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise ArgumentError(
                f"--log {name} without the package {name}",
                remedy=f'pip install "heedful[{name}]"',
            )
