"""Services that plot a run while it trains: TensorBoard, Weights & Biases and trackio.

Each is a function of the run directory, the recipe and the step at which training starts. It
returns a function that logs the numbers of a step, one that finishes, and where to see the run.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

from heedful.configuration import nearest
from heedful.errors import ArgumentError
from heedful.files import make_directory
from heedful.train.run_files import LOGS, WATCHED
from heedful.train.settings import Recipe

Service: TypeAlias = "tuple[Callable[[dict[str, float], int], object], Callable[[], object], str]"
# Names of the metrics in services, which group them by the part before the slash
NAMES = {
    "loss": "train/loss",
    "mean_loss": "train/mean_loss",
    "rate": "train/learning_rate",
    "validation_loss": "validation/loss",
}


def tensorboard(directory: Path, recipe: Recipe, step: int) -> Service:
    """Write event files to `logs/tensorboard`; after a resume, repeated steps replace old ones."""
    from torch.utils.tensorboard import SummaryWriter

    folder = directory / LOGS / "tensorboard"
    writer = SummaryWriter(str(folder), purge_step=step + 1)
    writer.add_text("recipe", f"```json\n{json.dumps(recipe.to_dict(), indent=2)}\n```", step)

    def log(numbers: dict[str, float], step: int) -> None:
        for tag, number in numbers.items():
            writer.add_scalar(tag, number, step)

    return log, writer.close, f"in {folder}; `tensorboard --logdir {folder}` shows it"


def wandb(directory: Path, recipe: Recipe, step: int) -> Service:
    """Log to a run of Weights & Biases, which ignores steps that it already has."""
    import wandb

    name, config = directory.resolve().name, recipe.to_dict()
    run = wandb.init(
        project=recipe.train.log_project, name=name, id=_id(directory), resume="allow",
        dir=directory / LOGS, config=config, settings=wandb.Settings(console="off", silent=True),
    )  # fmt: skip
    return run.log, run.finish, run.url or f"in {run.dir}"


def trackio(directory: Path, recipe: Recipe, step: int) -> Service:
    """Log to trackio's database on this machine, or where its environment variables say."""
    import trackio

    project = recipe.train.log_project
    name = f"{directory.resolve().name}-{_id(directory)}"  # trackio resumes a run by its name
    run = trackio.init(
        project=project, name=name, config=recipe.to_dict(), resume="allow", embed=False
    )
    where = f"in project {project}; `trackio show --project {project}` shows it"
    return run.log, run.finish, where


def _id(directory: Path) -> str:
    """Return the run's id in services, from its start time, so that no two runs share a curve."""
    return f"{(directory / 'config.json').stat().st_mtime_ns:x}"


# By their names in `--log`, which are also the names of the packages and of the extras
SERVICES: dict[str, Callable[[Path, Recipe, int], Service]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
}


class Logs:
    """Sends each line of `metrics.jsonl` to the services of a recipe's `log`.

    A service that raises an error is dropped, and the error is added to `notices`.
    """

    def __init__(self, directory: Path, recipe: Recipe, step: int) -> None:
        self.notices: list[str] = []
        self._services: dict[str, Service] = {}
        make_directory(directory / LOGS)
        for name in services_of(recipe.train.log):
            with self._without_if_failing(name):
                self._services[name] = SERVICES[name](directory, recipe, step)
                self.notices.append(f"{name}: {self._services[name][-1]}")

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Send a line of the metrics to each service."""
        for name, (log, _, _) in list(self._services.items()):
            with self._without_if_failing(name):
                log(numbers_of(line), line["step"])

    def end(self) -> None:
        """Finish all services: wait until they have written or sent their data."""
        while self._services:
            name, (_, finish, _) = self._services.popitem()
            with self._without_if_failing(name):
                finish()

    @contextmanager
    def _without_if_failing(self, name: str) -> Iterator[None]:
        try:
            with redirect_stdout(io.StringIO()):
                yield
        except Exception as error:  # services raise errors of any type
            self._services.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self.notices.append(f"{name}: {reason}; training goes on without it.")


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of `metrics.jsonl` by their names in services.

    >>> numbers_of({"step": 3, "loss": 2.5})
    {'train/loss': 2.5}
    >>> numbers_of({"step": 3, "watched": {"sink": [[0.5, 0.25]]}})
    {'watched/sink/0/0': 0.5, 'watched/sink/0/1': 0.25}
    """
    numbers = {tag: line[name] for name, tag in NAMES.items() if name in line}
    for score, layers in line.get(WATCHED, {}).items():
        for layer, heads in enumerate(layers):
            named = {f"watched/{score}/{layer}/{head}": value for head, value in enumerate(heads)}
            numbers |= {name: value for name, value in named.items() if value is not None}
    return numbers


def services_of(log: str | None) -> list[str]:
    """Return the names in `--log`, which are separated by commas.

    Raises:
        ArgumentError: a service is unknown, or its package is not installed.
    """
    names = [name.strip() for name in log.split(",")] if log and log.strip() else []
    for name in names:
        if name not in SERVICES:
            raise ArgumentError(f"log = {name!r}", expected=nearest(name, SERVICES))
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # without an origin: a plain folder of that name
            raise ArgumentError(
                f"--log {name} without the package {name}",
                remedy=f'pip install "heedful[{name}]"',
            )
    return names
