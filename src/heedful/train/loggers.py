"""Services that plot a run while it trains: TensorBoard, Weights & Biases and trackio.

Each service is a function of the run directory, the recipe and the step at which training starts.
It returns a `Service`: a function that logs the numbers of a step, a function that closes the
service, and a text that tells the user where to see the run.
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
# Names of the metrics in services, which group metrics by the part before the slash
NAMES = {
    "loss": "train/loss",
    "mean_loss": "train/mean_loss",
    "rate": "train/learning_rate",
    "validation_loss": "validation/loss",
}


def tensorboard(directory: Path, recipe: Recipe, step: int) -> Service:
    """Write event files to `logs/tensorboard`; steps repeated after a resume replace older ones."""
    from torch.utils.tensorboard import SummaryWriter

    folder = directory / LOGS / "tensorboard"
    writer = SummaryWriter(str(folder), purge_step=step + 1)
    writer.add_text("recipe", f"```json\n{json.dumps(recipe.to_dict(), indent=2)}\n```", step)

    def log(numbers: dict[str, float], step: int) -> None:
        for tag, number in numbers.items():
            writer.add_scalar(tag, number, step)

    return log, writer.close, f"in {folder}; `tensorboard --logdir {folder}` shows it"


def wandb(directory: Path, recipe: Recipe, step: int) -> Service:
    """Log to a run of Weights & Biases, which ignores repeated steps."""
    import wandb

    name, config = directory.resolve().name, recipe.to_dict()
    run = wandb.init(
        project=recipe.train.log_project, name=name, id=_id(directory), resume="allow",
        dir=directory / LOGS, config=config, settings=wandb.Settings(console="off", silent=True),
    )  # fmt: skip
    return run.log, run.finish, run.url or f"in {run.dir}"


def trackio(directory: Path, recipe: Recipe, step: int) -> Service:
    """Log to trackio's database: on this machine, or on a server named in the environment."""
    import trackio

    project = recipe.train.log_project
    name = f"{directory.resolve().name}-{_id(directory)}"  # trackio resumes a run by its name
    run = trackio.init(
        project=project, name=name, config=recipe.to_dict(), resume="allow", embed=False
    )
    location = f"in project {project}; `trackio show --project {project}` shows it"
    return run.log, run.finish, location


def _id(directory: Path) -> str:
    """Return the run's id in services, made of its start time, so that no two runs share an id."""
    return f"{(directory / 'config.json').stat().st_mtime_ns:x}"


# By name in `--log`, which is also the name of the package and of heedful's extra
SERVICES: dict[str, Callable[[Path, Recipe, int], Service]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
}


class Logs:
    """Sends each line of `metrics.jsonl` to the services of a recipe's `log`.

    `notices` tells the user where to see the run, and which services were dropped after an error.
    """

    def __init__(self, directory: Path, recipe: Recipe, step: int) -> None:
        self.notices: list[str] = []
        self._services: dict[str, Service] = {}
        make_directory(directory / LOGS)
        for name in services_of(recipe.train.log):
            with self._drop_on_error(name):
                self._services[name] = SERVICES[name](directory, recipe, step)
                self.notices.append(f"{name}: {self._services[name][-1]}")

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Send a line of the metrics to each service."""
        for name, (log, _, _) in list(self._services.items()):
            with self._drop_on_error(name):
                log(numbers_of(line), line["step"])

    def end(self) -> None:
        """Close all services, and wait until they have written or sent their data."""
        while self._services:
            name, (_, finish, _) = self._services.popitem()
            with self._drop_on_error(name):
                finish()

    @contextmanager
    def _drop_on_error(self, name: str) -> Iterator[None]:
        try:
            with redirect_stdout(io.StringIO()):
                yield
        except Exception as error:  # services raise errors of any type
            self._services.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self.notices.append(f"{name}: {reason}; training continues without it.")


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
    """Split the value of `--log` at its commas, and return the names of the services.

    Raises:
        ArgumentError: a service is unknown, or its package is not installed.
    """
    names = [name.strip() for name in log.split(",")] if log and log.strip() else []
    for name in names:
        if name not in SERVICES:
            raise ArgumentError(f"log = {name!r}", expected=nearest(name, SERVICES))
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # no origin: a folder of this name, not a package
            raise ArgumentError(
                f"--log {name} without the package {name}", remedy=f'pip install "heedful[{name}]"'
            )
    return names
