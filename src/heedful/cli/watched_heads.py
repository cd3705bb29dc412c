"""Scores and recordings of a run trained with `--watch`, for `plot` and `look`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import RunError

if TYPE_CHECKING:
    from heedful.recording import Recording
    from heedful.views.explorer.catalogue import TrainingStep


def was_watched(source: Path) -> bool:
    """Return whether the path is a run that was trained with --watch."""
    from heedful.train.watch import recordings_of

    return source.is_dir() and bool(recordings_of(source))


def plot_scores_over_steps(source: Path, title: str | None) -> Any:
    """Plot the head scores of a run over its training steps, and print the best heads.

    Raises:
        RunError: the run was trained without --watch.
    """
    from heedful.train import read_metrics
    from heedful.train.run_files import METRICS
    from heedful.train.watch import scores_over_steps
    from heedful.views import training_curve
    from heedful.views.terminal import console

    metrics = read_metrics(source / METRICS)
    steps, scores = scores_over_steps(metrics)
    if not steps:
        raise RunError(
            f"{source} was not trained with --watch",
            expected="a run of `heedful train --watch TEXT`",
            remedy="train it again with --watch, or pass a text to plot its attention now",
        )
    history, losses = training_curve.HeadHistory(steps, scores), training_curve.Losses.of(metrics)
    console().print(training_curve.head_history_table(history))
    return training_curve.plot_head_history(history, losses, title=title)


def load_watched(source: Path) -> tuple[dict[str, Recording], list[TrainingStep]]:
    """Load the recordings that --watch made during training, with their steps and losses."""
    from heedful.recording import load
    from heedful.train import read_metrics
    from heedful.train.run_files import METRICS
    from heedful.train.watch import recordings_of
    from heedful.views.explorer.catalogue import TrainingStep

    metrics = read_metrics(source / METRICS)
    recordings, moments = {}, []
    for number, (step, path) in enumerate(recordings_of(source).items()):
        recordings[f"step {step:,}"] = load(path)
        past = [line for line in reversed(metrics) if line["step"] <= step]
        training: dict[str, Any] = next((line for line in past if "mean_loss" in line), {})
        check: dict[str, Any] = next((line for line in past if "validation_loss" in line), {})
        losses = training.get("mean_loss"), check.get("validation_loss"), check.get("step")
        moments.append(TrainingStep(number, step, *losses))
    return recordings, moments
