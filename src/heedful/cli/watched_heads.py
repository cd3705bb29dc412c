"""What `plot` and `look` show of a run that was trained with `--watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError

if TYPE_CHECKING:
    from heedful.recording import Recording
    from heedful.views.explorer.catalogue import Moment


def was_watched(source: Path) -> bool:
    """Whether it is a run whose heads were looked at while it was trained."""
    from heedful.train.watch import recordings_of

    return source.is_dir() and bool(recordings_of(source))


def how_heads_formed(source: Path, title: str | None) -> Any:
    """The scores of a run's heads over its steps as a picture; the best of them are printed.

    Raises:
        RunError: a run that was not watched.
    """
    from heedful.cli.run_training import losses_of
    from heedful.train import read_metrics
    from heedful.train.run_files import METRICS
    from heedful.train.watch import scores_over_steps
    from heedful.views.terminal import console
    from heedful.views.training_curve import Forming, forming_picture, forming_table

    metrics = read_metrics(source / METRICS)
    steps, scores = scores_over_steps(metrics)
    if not steps:
        raise RunError(
            f"{source} was not watched while it was trained",
            expected="a run of `heedful train --watch TEXT`",
            remedy="train it again with --watch, or give a text to see where its heads look now",
        )
    forming = Forming(steps, scores)
    console().print(forming_table(forming))
    return forming_picture(forming, losses_of(metrics), title=title)


def moments_of(source: Path) -> tuple[dict[str, Recording], list[Moment]]:
    """The recordings of a watched run by their names, and the step and losses of each."""
    from heedful.recording import load
    from heedful.train import read_metrics
    from heedful.train.run_files import METRICS
    from heedful.train.watch import recordings_of
    from heedful.views.explorer.catalogue import Moment

    metrics = read_metrics(source / METRICS)
    recordings, moments = {}, []
    for number, (step, path) in enumerate(recordings_of(source).items()):
        recordings[f"step {step:,}"] = load(path)
        until = [line for line in reversed(metrics) if line["step"] <= step]
        trained: dict[str, Any] = next((line for line in until if "mean_loss" in line), {})
        checked: dict[str, Any] = next((line for line in until if "validation_loss" in line), {})
        losses = trained.get("mean_loss"), checked.get("validation_loss"), checked.get("step")
        moments.append(Moment(number, step, *losses))
    return recordings, moments
